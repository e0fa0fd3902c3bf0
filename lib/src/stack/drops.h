// SPDX-License-Identifier: Apache-2.0
// What training drops, and by which seed: every place has numbers of its own, so that forward and
// backward, and two devices, drop the same.
#pragma once

#include "scanrnn/layer.h"
#include "stack/layer_call.h"

namespace scanrnn {

struct Drops {
  const LayerOptions& options;
  bool training;
  std::uint64_t seed;
  const std::uint64_t* memory;  // that has the seed instead, or null

  template <class Args>
  Drops(const LayerOptions& options, bool training, const Args& args)
      : options(options),
        training(training && options.draws),
        seed(args.seed),
        memory(static_cast<const std::uint64_t*>(args.seed_in.data)) {}

  bool after_layers() const { return training && options.dropout > 0; }
  bool from_input() const { return training && options.input_dropout > 0; }
  bool from_matrix() const { return training && options.dropconnect > 0; }

  // Behind a layer; from what a layer reads; from the matrix R of a layer call.
  Drop behind(int layer) const { return {{options.dropout, seed_of(layer, kBehind)}}; }
  Drop of_input(int layer, const SequenceBounds& sequences) const {
    return {{options.input_dropout, seed_of(layer, kOfInput)}, false, &sequences};
  }
  Drop of_matrix(const LayerCall& call) const {
    return {{options.dropconnect, seed_of(call, kOfMatrix)}};
  }
  // Inside a layer call's recurrence; zoneout is there in inference, too, by its mean.
  Masks in_recurrence(const LayerCall& call) const {
    Masks out;
    out.state = {{options.zoneout, seed_of(call, kOfState)}, training};
    out.cell = {{options.zoneout_cell, seed_of(call, kOfCell)}, training};
    if (!training || options.state_dropout == 0) return out;
    const Drop readout{{options.state_dropout, seed_of(call, kOfReadout)}};
    out.scale = readout.scale();
    out.readout_seed = readout.seed;
    out.readout_threshold = readout.short_threshold();
    return out;
  }

 private:
  static constexpr std::uint64_t kBehind = 0x626568696e64, kOfInput = 0x696e707574,
                                 kOfMatrix = 0x6d6174726978, kOfState = 0x7374617465,
                                 kOfCell = 0x63656c6c, kOfReadout = 0x726561646f7574;

  Seed seed_of(int place, std::uint64_t what) const {
    const std::uint64_t key = what + static_cast<std::uint64_t>(place) * 0x9e3779b97f4a7c15u;
    return memory ? Seed{key, memory} : Seed{mix(seed ^ key)};
  }
  Seed seed_of(const LayerCall& call, std::uint64_t what) const {
    return seed_of(call.layer * 2 + call.reverse, what);
  }
};

// A matrix as tokens of one line.
inline TensorView as_rows(const TensorView& matrix) {
  TensorView out = matrix;
  out.rank = 3;
  out.sizes = {matrix.sizes[0], 1, matrix.sizes[1]};
  out.strides = {matrix.strides[0], 0, 1};
  return out;
}

}  // namespace scanrnn
