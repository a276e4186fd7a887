package scale

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// counting is a listener that counts what is sent on its connections.
type counting struct {
	net.Listener
	server *Server
}

func (c counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countedConn{conn, c.server}, nil
}

type countedConn struct {
	net.Conn
	server *Server
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.server.out.Add(uint64(n))
	return n, err
}

// certificate makes a certificate for 127.0.0.1 that lasts a day, as PEM for
// clients and as configuration for the server.
func certificate() ([]byte, *tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate: %w", err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "simulated API server"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, nil
}

// writeKubeconfig writes how to reach the server.
func (s *Server) writeKubeconfig(path string) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["simulation"] = &clientcmdapi.Cluster{Server: "https://" + s.addr, CertificateAuthorityData: s.ca}
	c.Contexts["simulation"] = &clientcmdapi.Context{Cluster: "simulation"}
	c.CurrentContext = "simulation"
	b, err := clientcmd.Write(*c)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}
