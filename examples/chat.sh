#!/bin/sh
# A reply, then a stream. OPENAI_BASE_URL names another server.
set -eu
url=${OPENAI_BASE_URL:-http://localhost:10002/v1}

curl --silent --show-error --fail "$url/chat/completions" \
  --header "Content-Type: application/json" \
  --header "Authorization: Bearer ${OPENAI_API_KEY:-none}" \
  --data '{"messages": [{"role": "user", "content": "What is Ballast?"}]}'
echo

curl --silent --show-error --fail --no-buffer "$url/chat/completions" \
  --header "Content-Type: application/json" \
  --header "Authorization: Bearer ${OPENAI_API_KEY:-none}" \
  --data '{"messages": [{"role": "user", "content": "What is the default port?"}], "stream": true}'
