// Package admission refuses wrong policies where people can see it: when they
// apply them. It is the API server's side of "tierwall check", and shares its code.
//
//	AdmissionReview ── decode ──► Validate ──► lowered with the others of its API
//	                     │ strict    │ alone       │ compared with the world before
//	                     └───────────┴─────────────┴──► denied: field path, what, hint
//	                                                    allowed: with warnings
//
// # What is denied
//
//   - an object with an error: an unknown field, a value out of range, a selector
//     that selects nothing, a tier or group that is not there (S2-04, S2-78, X-07,
//
//   - an update or deletion that would put an error on another object: deleting a
//     Tier that has policies (S2-07), a group that is a child or in use (S2-79),
//     giving children to a child (S2-77), a second tier of a priority (S2-05)
//   - a change of a Tier's priority (S2-06), the deletion of one of the six static
//     Tiers (S2-09)
//   - a KEP AdminNetworkPolicy beside released ones, and the other way round
//
// What was wrong with other objects before is nobody's fault now and denies
// nothing. An update that leaves policy alone (labels, finalizers, the last steps
// of a deletion) passes whatever the object is worth, so that no object is stuck.
//
// Warnings are those of "tierwall check": what the object's API wonders about,
// conflicts, and in clusters of at most MaxLintObjects policies what lint finds.
//
// # What it does not guarantee
//
// Nothing rests on it. Daemons check every object again and never enforce one in
// parts, so the webhook's failurePolicy is Ignore: a webhook that is away lets
// through what daemons then refuse, with the reason in the object's status, while
// Fail would keep people from repairing policy when they need to most. What it
// knows of the world is a watch behind: an object refused because of others is
// looked at again for a moment, in case those have just been created or deleted.
//
// There is no mutating webhook. The documents' defaults (the tier application, the
// generated names of rules, an empty list for null) are applied while lowering, so
// that they hold for objects that never saw a webhook.
package admission
