// Package nstest gives privileged tests networks of their own: the namespaces
// of package netlab, tied to a *testing.T. Only tests import it.
//
// A privileged test starts with Need. It skips, saying what is missing, where it
// cannot run; with TIERWALL_REQUIRE_PRIV=1 in the environment, which CI sets, a
// skip is a failure, so that "all green" cannot mean "nothing ran".
//
//	func TestForward(t *testing.T) {
//		nstest.Need(t)
//		node := nstest.NewNode(t)
//		a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
//		...
//	}
package nstest
