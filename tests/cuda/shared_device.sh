#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kernels that need a device to themselves for a moment, where it is shared or is not the first one:
#   tests/cuda/shared_device.sh PROGRAM [SECONDS]      build/cuda/tests/scanrnn_tests
# Two processes at the same time, each with its share of time; the same as clients of CUDA's
# multi-process service, whose kernels run side by side; and two devices in another order. What the
# host has not is named and skipped. Fails if a test does, or if a run is not over after SECONDS, 90
# unless given: some 20 are expected.
set -uo pipefail
program=${1:?the tests, built with CUDA}
seconds=${2:-90}
export SCANRNN_TEST_DEVICE=cuda SCANRNN_REQUIRE_GPU=1
cases='ResidencyTest.*:CudaPersistentTest.SameBitsTwice'
cases+=':AtOnceConformance.RepeatedRunsGiveTheSameBits:StackStepTest.StatesInPlace'
# A million launches take turns with another process's, and say nothing of who waits for whom.
without='ResidencyTest.AMillionSteps'
said=$(mktemp -d)
status=0

# Says and keeps how a run of the tests has ended.
run() {
  local what=$1 code=0
  shift
  echo "$what: begins"
  timeout --kill-after=10 "$seconds" "$@" "$program" --gtest_filter="$cases-$without" \
    >"$said/$what" 2>&1 || code=$?
  case $code in
  0) echo "$what: passed" && return ;;
  124 | 137) echo "$what: FAILED, it was not over after $seconds s, at $(at "$what")" ;;
  *) echo "$what: FAILED with status $code" ;;
  esac
  cat "$said/$what"
  return 1
}
# The test that a run began last.
at() {
  sed -n 's/^\[ RUN *\] //p' "$said/$1" | tail -1
}
# Two at once, by the same means.
both() {
  run "$1-1" env &
  local first=$!
  run "$1-2" env || status=1
  wait "$first" || status=1
}
end() {
  if [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then
    echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
  fi
  rm -rf "$said"
}
trap end EXIT

both two-processes
if command -v nvidia-cuda-mps-control >/dev/null; then
  # A service of its own, which no other process of this host finds.
  export CUDA_MPS_PIPE_DIRECTORY=$said/pipe CUDA_MPS_LOG_DIRECTORY=$said/log
  mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  if nvidia-cuda-mps-control -d; then
    both two-clients-of-mps
    echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
  else
    echo "two-clients-of-mps: SKIPPED, nvidia-cuda-mps-control does not start"
  fi
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
else
  echo "two-clients-of-mps: SKIPPED, there is no nvidia-cuda-mps-control"
fi
if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ]; then
  cases+=':CudaStreamTest.TheCallersDeviceStaysCurrent'
  run second-device-first env CUDA_VISIBLE_DEVICES=1,0 SCANRNN_REQUIRE_GPU=2 || status=1
else
  echo "second-device-first: SKIPPED, there is one device"
fi
exit $status
