// SPDX-License-Identifier: Apache-2.0
// Runs a case through the public API in watched memory: every buffer is poisoned, guarded and of
// the exact size that the library asked for.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "support/case.h"
#include "support/mirror.h"

namespace scanrnn::test {

// [T,B,n] to the layout of the case and back.
Values swap_axes(const Values& values, std::int64_t outer, std::int64_t inner);

// All tensors of a case.
class Buffers {
 public:
  Buffers(const Case& c, const Data& data, Memory memory = {});
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  ForwardArgs forward_args(Mirror& mirror);
  BackwardArgs backward_args(Mirror& mirror);

  // These run with exactly the memory asked for; `change` may alter the arguments.
  void forward(
      Context& context, Mode mode, std::uint64_t seed = 0,
      const std::function<void(ForwardArgs&)>& change = [](ForwardArgs&) {});
  void backward(
      Context& context, std::uint64_t seed = 0,
      const std::function<void(BackwardArgs&)>& change = [](BackwardArgs&) {});
  // One step, [B,C] to [B,H], whose new state replaces the old one in h0.
  void step_in_place(Context& context);
  dispatch::Plan plan_for(const Context& context, Mode mode) const;

  Result result() const;
  // The bytes of every output, one after the other.
  std::vector<std::uint8_t> bits() const;
  // Around every tensor all is as it was made.
  bool intact() const;
  void poison_outputs();
  bool outputs_untouched() const;

  std::vector<Tensor> params, dparams;
  Tensor x, dx, y, dy, h0, hn, dh0, dhn;
  static constexpr std::size_t kMore = kStateTensors.size() - 1;
  using MoreTensors = std::array<Tensor, kMore>;
  MoreTensors more0, moren, dmore0, dmoren;  // those that the cell has not are nothing

 private:
  // The tensors of `outputs`, const where these buffers are.
  template <class Self>
  static auto outputs_of(Self& self);
  std::vector<Tensor*> outputs();
  std::vector<const Tensor*> outputs() const;
  State state(Mirror& mirror, Tensor& h, MoreTensors& more, bool present = true) const;
  std::vector<std::int64_t> sizes(std::int64_t n) const;
  Values laid_out(const Values& values) const;
  Values laid_out_back(const Values& values) const;
  bool batch_major() const { return case_.layer.batch_first && !case_.packed(); }
  // What a call that threw left behind is looked at too.
  static void run(Mirror& mirror, const std::function<void()>& call);
  void expect_intact() const;

  Case case_;
  Layer layer_;
  Workspace reserve_{0};
};

// Forward in training mode, then backward.
Result library(const Case& c, const Data& data, Memory memory = {});
Result library_inference(const Case& c, const Data& data, Memory memory = {});

}  // namespace scanrnn::test
