# shellcheck shell=bash disable=SC2154
# Counting what checks count: for scripts/test and the test of a bundle, which source it and set `logs`, a directory.

passed=0
failed=0

# The sum of a step's own counts: "N passed, N failed" of a C test (behind ctest's "3: "), or busted's
# "N successes / N failures / N errors"; and one for each C test that did not get to its counts.
counts() {
  awk '{ sub(/^[0-9]+: /, "") }
    /^[0-9]+ passed, [0-9]+ failed$/                          { good += $1; bad += $3 }
    /^[0-9]+ success(es)? \/ [0-9]+ failures? \/ [0-9]+ errors? / { good += $1; bad += $4 + $7 }
    /\*\*\*(Exception|Timeout|Not Run)/                        { bad++ }
    END { print good + 0, bad + 0 }' "$1"
}

# step NAME COMMAND...: counts what the command counted, or else itself, as one check.
step() {
  local name=$1 start=$SECONDS status good bad
  local log=$logs/${name// /-}.log
  shift
  "$@" >"$log" 2>&1 </dev/null
  status=$?
  read -r good bad < <(counts "$log")
  if ((status != 0 && bad == 0)); then
    bad=1 # a crash, a leak, or a command that counts nothing
  elif ((good + bad == 0)); then
    good=1
  fi
  passed=$((passed + good))
  failed=$((failed + bad))
  if ((bad > 0)); then
    cat "$log"
    echo "FAILED  $name: $bad of $((good + bad)), $((SECONDS - start)) s"
  else
    echo "ok      $name: $good, $((SECONDS - start)) s"
  fi
}

# early NAME COMMAND...: begins a command beside the steps that follow, which it leaves the processor to; those begun
# later wait for it.  `ended NAME` is the step that takes its output and its end.
declare -A early_job
early_last=
early() {
  local name=$1 before=$early_last
  shift
  (
    [[ -z $before ]] || tail --pid="$before" -f /dev/null
    renice -n 10 $BASHPID >/dev/null
    "$@"
  ) >"$logs/early-${name// /-}.log" 2>&1 </dev/null &
  early_job[$name]=$!
  early_last=$!
}
ended() {
  wait "${early_job[$1]}"
  local status=$?
  cat "$logs/early-${1// /-}.log"
  return $status
}

# The last line; false if anything failed.
total() {
  echo "$passed passed, $failed failed"
  ((failed == 0))
}
