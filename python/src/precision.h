// SPDX-License-Identifier: Apache-2.0
// The precision of float32 matrix products: one setting for the process, as in torch.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "names.h"

namespace scanrnn {

inline std::atomic<MatmulPrecision>& matmul_precision() {
  static std::atomic<MatmulPrecision> setting{MatmulPrecision::highest};
  return setting;
}

inline constexpr std::pair<const char*, MatmulPrecision> kMatmulPrecisions[] = {
    {"highest", MatmulPrecision::highest},
    {"high", MatmulPrecision::high},
    {"medium", MatmulPrecision::medium}};

inline void set_matmul_precision(const std::string& text) {
  matmul_precision() = find_named("precision", text, kMatmulPrecisions, [](const auto& p) {
                         return p.first;
                       }).second;
}

inline std::string get_matmul_precision() {
  const MatmulPrecision now = matmul_precision();
  for (const auto& [text, precision] : kMatmulPrecisions) {
    if (precision == now) return text;
  }
  return "";
}

}  // namespace scanrnn
