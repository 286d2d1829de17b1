#!/bin/sh
# Claude Code with one tool and without a terminal. CLAUDE is the path of the program.
set -eu
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
exec "${CLAUDE:-claude}" --bare --print --model claude --allowedTools Bash \
  --session-id "$CASEWORKER_RUN_ID" --no-session-persistence \
  "Report on the rain in Bergen."
