#!/bin/sh
# An agent in a shell script: two model calls with a step of its own between them.
set -eu

# Calls the model with one message, and prints the text of its reply.
ask() {
  curl --silent --show-error --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
    -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \
    -d "{\"model\": \"small\", \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}" \
    > reply.json || {
    cat reply.json >&2
    return 1
  }
  sed -n 's/.*"content": *"\([^"]*\)".*/\1/p' reply.json
}

plan=$(ask "How do I report on the rain in Bergen?")
echo "tool: rain in Bergen"
ask "Plan: $plan Rain: 12 mm. Report on the rain in Bergen."
