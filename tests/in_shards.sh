#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program of GoogleTest's in as many processes as there are processors, up to eight, each with
# a share of the tests:
#   tests/in_shards.sh PROGRAM [ARGUMENT ...]
# What the first of them says appears at once, what the others said follows it. Fails if any does.
set -uo pipefail
count=$(($(nproc) < 8 ? $(nproc) : 8))
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
export GTEST_TOTAL_SHARDS=$count
for ((i = 1; i < count; i++)); do
  GTEST_SHARD_INDEX=$i "$@" >"$said/$i" 2>&1 &
  others[i]=$!
done
status=0
GTEST_SHARD_INDEX=0 "$@" || status=1
for ((i = 1; i < count; i++)); do
  wait "${others[i]}" || status=1
  cat "$said/$i"
done
exit $status
