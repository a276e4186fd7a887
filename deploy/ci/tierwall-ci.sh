#!/bin/sh
# One step of a pipeline: check the policies, test them, and show what the change
# changes. GitHub's action and GitLab's template both run this script, at the root of
# the repository. It needs the program tierwall in PATH and git; no cluster.
#
#   TIERWALL_MANIFESTS  directory of manifests (default: .)
#   TIERWALL_INTENTS    files or directories of tests, separated by spaces (default: none)
#   TIERWALL_BASE       git revision to compare with (default: none, no comparison)
#   TIERWALL_FAIL_ON    opened, closed, any or none (default: none)
#   TIERWALL_OUT        where the reports go (default: tierwall-reports)
#
# Reports: check.sarif, test.sarif, junit.xml, diff.md, diff.json. The exit code is 0 if
# nothing is wrong, 1 for findings, 2 if something could not be asked.
set -u
manifests=${TIERWALL_MANIFESTS:-.}
out=${TIERWALL_OUT:-tierwall-reports}
fail_on=${TIERWALL_FAIL_ON:-none}
mkdir -p "$out" || exit 2
worst=0

# note keeps the worst exit code, and says what went wrong.
note() {
  [ "$1" -eq 0 ] && return
  echo "tierwall: $2: exit code $1" >&2
  [ "$1" -gt "$worst" ] && worst=$1
}

# Text for the log of the job, then the report for the code host. A report of a run
# that could not be asked is taken away: an empty one would look like no findings.
tierwall check --manifests "$manifests"
note $? check
tierwall check --manifests "$manifests" -o sarif >"$out/check.sarif" 2>/dev/null || [ $? -eq 1 ] || rm -f "$out/check.sarif"

if [ -n "${TIERWALL_INTENTS:-}" ]; then
  # Several paths are several arguments.
  # shellcheck disable=SC2086
  tierwall test $TIERWALL_INTENTS --manifests "$manifests"
  note $? test
  for form in sarif:test.sarif junit:junit.xml; do
    # shellcheck disable=SC2086
    tierwall test $TIERWALL_INTENTS --manifests "$manifests" -o "${form%%:*}" >"$out/${form#*:}" 2>/dev/null ||
      [ $? -eq 1 ] || rm -f "$out/${form#*:}"
  done
fi

if [ -n "${TIERWALL_BASE:-}" ]; then
  tierwall diff --git "$TIERWALL_BASE" "$manifests" --fail-on "$fail_on"
  note $? diff
  for form in markdown:diff.md json:diff.json; do
    tierwall diff --git "$TIERWALL_BASE" "$manifests" --fail-on none -o "${form%%:*}" >"$out/${form#*:}" 2>/dev/null ||
      rm -f "$out/${form#*:}"
  done
  if [ -n "${GITHUB_STEP_SUMMARY:-}" ] && [ -f "$out/diff.md" ]; then
    cat "$out/diff.md" >>"$GITHUB_STEP_SUMMARY"
  fi
fi
exit "$worst"
