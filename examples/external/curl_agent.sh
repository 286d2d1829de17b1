#!/bin/sh
# An agent in a shell script: two model calls with a step of its own between them.
set -eu

# Calls the model with one message, and prints its reply.
ask() {
  curl --silent --show-error --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
    -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \
    -d "{\"model\": \"small\", \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}"
}

# Prints the text of a reply.
text_of() {
  echo "$1" | sed -n 's/.*"content": *"\([^"]*\)".*/\1/p'
}

reply=$(ask "How do I report on the rain in Bergen?")
echo "tool: rain in Bergen"
reply=$(ask "Plan: $(text_of "$reply") Rain: 12 mm. Report on the rain in Bergen.")
text_of "$reply"
