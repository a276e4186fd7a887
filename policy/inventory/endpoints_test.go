package inventory_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/tierwall/tierwall/policy/inventory"
)

func TestReadEndpointSlice(t *testing.T) {
	service := map[string]string{discoveryv1.LabelServiceName: "db"}
	s, found := inventory.ReadEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-x", Labels: service}, AddressType: discoveryv1.AddressTypeIPv6,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("pg"), Port: ptr.To[int32](5432)}, {Protocol: ptr.To(corev1.ProtocolUDP)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"fd00::1"}}, // conditions are true unless said
			{Addresses: []string{"fd00::2"}, NodeName: ptr.To("n1"), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false), Terminating: ptr.To(true)}},
			{Addresses: []string{"fe80::1%eth0"}},
		},
	})
	want := []inventory.Endpoint{
		{Addr: netip.MustParseAddr("fd00::1"), Ready: true, Serving: true},
		{Addr: netip.MustParseAddr("fd00::2"), Node: "n1", Terminating: true},
	}
	if s.Service != "db" || !slices.Equal(s.Endpoints, want) || len(found.Errors) > 0 || len(found.Warnings) != 1 {
		t.Errorf("%+v, findings %+v", s, found)
	}
	if ports := []inventory.EndpointPort{{Name: "pg", Proto: "TCP", Port: 5432}, {Proto: "UDP"}}; !slices.Equal(s.Ports, ports) {
		t.Errorf("ports %+v", s.Ports)
	}
	for name, v := range map[string]*discoveryv1.EndpointSlice{
		"of no Service": {ObjectMeta: metav1.ObjectMeta{Name: "x"}, AddressType: discoveryv1.AddressTypeIPv4},
		"of names":      {ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: service}, AddressType: discoveryv1.AddressTypeFQDN},
	} {
		if s, _ := inventory.ReadEndpointSlice(v); s.Service != "" || s.Name != "x" {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestReadinessIsNoChange: probes that fail and pods that end are nothing to policy,
// and must not cost a node a new table.
func TestReadinessIsNoChange(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"}, Status: corev1.PodStatus{PodIP: "10.0.0.1"}}
	ready, _, _ := inventory.ReadPod(pod)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	ending, _, _ := inventory.ReadPod(pod)
	if ready.Unready || ready.Terminating || !ending.Unready || !ending.Terminating {
		t.Errorf("read as %+v and %+v", ready, ending)
	}
	if !inventory.SamePod(&ready, &ending) {
		t.Error("readiness counts as a change")
	}
}
