#!/bin/sh
# A worker in shell: it claims jobs of one kind, passes each payload to a command, and stores what that prints.
#   HOLDFAST_URL=http://127.0.0.1:8040 HOLDFAST_TOKEN=hf_… examples/worker.sh KIND COMMAND [ARGUMENT…]
# It needs curl and jq 1.6. On SIGTERM it finishes its job. docs/service-workers.md describes the protocol.
set -u
kind=${1:?the KIND is missing} && shift && : "${1:?the COMMAND is missing}"
folder=$(mktemp -d) start=$PWD stop= poll=
trap 'rm -rf "$folder"' EXIT
trap 'stop=1; [ -z "$poll" ] || kill "$poll" 2>/dev/null' TERM INT # the service takes back an unread answer

call() { # call PATH BODY ANSWER: send BODY until the service answers, which is safe; fail unless it accepts
    while :; do
        curl -sS -m 60 -o "$3" -w '%{http_code}' "$HOLDFAST_URL/v1/$1" --data-binary "@$2" \
            -H @headers -H 'Content-Type: application/json' >"$3.status" & curl=$!
        [ "$1" != claims ] || { poll=$curl && [ -z "$stop" ] || kill "$poll"; }
        until wait "$curl" 2>/dev/null; ! kill -0 "$curl" 2>/dev/null; do :; done
        poll= status=$(cat "$3.status")
        case $status in '' | 000 | 408 | 429 | 5??) [ "$1$stop" != claims1 ] && sleep 0.5 || return 1 ;; *) break ;; esac
    done
    [ "$status" = 200 ] || { cat "$3" >&2 && false; }
}

renew() { # renew PID: extend the lease; end the process if the job is lost or is to be cancelled
    while sleep 5 && call "claims/$id/heartbeat" lease renewal && ! grep -q '_requested":true' renewal; do :; done
    kill "$1"
}

cd "$folder" && echo "Authorization: Bearer $HOLDFAST_TOKEN" >headers || exit 1 # other users see arguments of curl
while [ -z "$stop" ]; do
    # A claim with the same token returns the same job, if the answer was lost.
    token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    jq -n --arg kind "$kind" --arg token "$token" --arg worker "sh-$$" \
        '{worker: $worker, kinds: [$kind], wait: 20, lease_token: $token}' >claim
    call claims claim claimed || break
    id=$(jq -r '.claims[0].job.id // empty | @uri' claimed) && [ -n "$id" ] || continue
    jq '.claims[0] | {epoch, lease_token, lease: 15}' claimed >lease
    call "claims/$id/acknowledge" lease renewal || continue # too late: the job was released
    jq -c .claims[0].job.payload claimed >payload
    (cd "$start" && exec "$@") <payload >result 2>errors & command=$!
    renew "$command" >/dev/null 2>&1 & renewer=$!
    until wait "$command"; code=$?; ! kill -0 "$command" 2>/dev/null; do :; done
    kill "$renewer" 2>/dev/null
    jq --rawfile result result --rawfile errors errors --argjson code "$code" 'del(.lease) +
        if $code == 0 then {outcome: "done", $result}
        else {outcome: "failed", message: "exit code \($code): \($errors[:2000])"} end' lease >outcome
    call "claims/$id/settle" outcome settled
done
[ -n "$stop" ]
