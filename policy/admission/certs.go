package admission

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"slices"
	"time"
)

// Keys of the Secret that holds the certificates, PEM each.
const (
	KeyCA         = "ca.crt" // the authorities to trust, newest first
	KeyCAKey      = "ca.key" // of the newest
	KeyServing    = "tls.crt"
	KeyServingKey = "tls.key"
)

// How long certificates are good for, and how long before the end they are made
// anew. A serving certificate never outlives its authority, and an authority stays
// trusted until its end.
const (
	authorityLife   = 5 * 365 * 24 * time.Hour
	authorityRenew  = 365 * 24 * time.Hour
	servingLife     = 90 * 24 * time.Hour
	servingRenew    = 30 * 24 * time.Hour
	clockDifference = time.Hour // certificates are good from a while ago
)

// Renew returns what the Secret should hold: what it does, with what is missing,
// unreadable, for other names, or near its end made anew. changed is false when it
// is data itself. names are DNS names or IP addresses. data is not modified.
//
// A new authority is put in front of the old one, and the serving certificate stays
// with the old until it is renewed itself: by then whoever reads the list of
// authorities trusts both.
func Renew(data map[string][]byte, names []string, now time.Time) (renewed map[string][]byte, changed bool, err error) {
	out := maps.Clone(data)
	if out == nil {
		out = map[string][]byte{}
	}
	trusted := slices.DeleteFunc(parseAll(out[KeyCA]), func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
	key := parseKey(out[KeyCAKey])
	if len(trusted) == 0 || key == nil || !key.PublicKey.Equal(trusted[0].PublicKey) || now.After(trusted[0].NotAfter.Add(-authorityRenew)) {
		var ca *x509.Certificate
		if ca, key, err = newAuthority(now); err != nil {
			return nil, false, err
		}
		trusted = slices.Insert(trusted, 0, ca)
		changed = true
		if out[KeyCAKey], err = encodeKey(key); err != nil {
			return nil, false, err
		}
	}
	if changed {
		var list bytes.Buffer
		for _, c := range trusted {
			list.Write(encodeCert(c.Raw))
		}
		out[KeyCA] = list.Bytes()
	}
	if !servable(out, trusted, names, now) {
		cert, serving, err := newServing(trusted[0], key, names, now)
		if err != nil {
			return nil, false, err
		}
		out[KeyServing] = encodeCert(cert)
		if out[KeyServingKey], err = encodeKey(serving); err != nil {
			return nil, false, err
		}
		changed = true
	}
	return out, changed, nil
}

// Serving returns the certificate to serve.
func Serving(data map[string][]byte) (*tls.Certificate, error) {
	c, err := tls.X509KeyPair(data[KeyServing], data[KeyServingKey])
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return &c, nil
}

// servable reports whether the serving certificate is good for a while yet.
func servable(data map[string][]byte, trusted []*x509.Certificate, names []string, now time.Time) bool {
	pair, err := Serving(data)
	if err != nil {
		return false
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil || now.After(leaf.NotAfter.Add(-servingRenew)) {
		return false
	}
	roots := x509.NewCertPool()
	for _, c := range trusted {
		roots.AddCert(c)
	}
	for _, n := range names {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: n, Roots: roots, CurrentTime: now}); err != nil {
			return false
		}
	}
	return true
}

func newAuthority(now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("key: %w", err)
	}
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: "tierwall webhook authority"}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		NotBefore: now.Add(-clockDifference), NotAfter: now.Add(authorityLife), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := sign(t, t, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	c, err := x509.ParseCertificate(der)
	return c, key, err
}

func newServing(ca *x509.Certificate, caKey *ecdsa.PrivateKey, names []string, now time.Time) ([]byte, *ecdsa.PrivateKey, error) {
	if len(names) == 0 {
		return nil, nil, errors.New("a serving certificate for no name")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("key: %w", err)
	}
	end := now.Add(servingLife)
	if end.After(ca.NotAfter) {
		end = ca.NotAfter
	}
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, NotBefore: now.Add(-clockDifference), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	der, err := sign(t, ca, &key.PublicKey, caKey)
	return der, key, err
}

func sign(t, parent *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	t.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, t, parent, public, by)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return der, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// parseAll reads the certificates of a PEM list, as far as they can be read.
func parseAll(text []byte) (out []*x509.Certificate) {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return out
		}
		if c, err := x509.ParseCertificate(b.Bytes); err == nil && b.Type == "CERTIFICATE" {
			out = append(out, c)
		}
	}
}

func parseKey(text []byte) *ecdsa.PrivateKey {
	b, _ := pem.Decode(text)
	if b == nil {
		return nil
	}
	k, err := x509.ParseECPrivateKey(b.Bytes)
	if err != nil {
		return nil
	}
	return k
}
