#!/bin/sh
# Claude Code with one tool, without a terminal. CLAUDE is the program.
set -eu
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
exec "${CLAUDE:-claude}" "$@" --bare --print --model claude --allowedTools Bash \
  --session-id 7d2f0c3e-52c8-4b0e-9d55-3c1f5a0e9b11 --no-session-persistence \
  "Report on the rain in Bergen."
