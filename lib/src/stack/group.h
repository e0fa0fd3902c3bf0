// SPDX-License-Identifier: Apache-2.0
// Layer calls of a stack that run at the same time, each in memory of its own: two directions, or
// layers of a chain, which go on by parts of the sequence or are one launch.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "stack/run.h"

namespace scanrnn {

class Group {
 public:
  Group(Backend& backend, const dispatch::Plan& plan, Arena& workspace)
      : backend_(backend), plan_(plan), workspace_(workspace) {}

  std::size_t size() const { return members_.size(); }
  // `also` works on a part's steps before the call goes forward over them, or once it came back.
  void add(const LayerCall& call, std::function<void(const Tile&)> also) {
    members_.push_back({call, std::move(also)});
  }
  void forward() { run(false); }
  void backward() { run(true); }

 private:
  struct Member {
    LayerCall call;
    std::function<void(const Tile&)> also;
    void* memory = nullptr;
  };

  void run_as_one(bool back) {
    Arena all = workspace_.rest();
    std::vector<LayerCall> calls;
    for (Member& member : members_) {
      if (back && &member != &members_.back()) member.call.dx = {};
      calls.push_back(member.call);
    }
    backend_.chain(plan_, calls, back, all);
    workspace_.saw(all);
    members_.clear();
  }

  void run(bool back) {
    const Index steps = plan_.problem.steps, each = dispatch::together(plan_, back).part_steps;
    // One launch, in which layers hand one another each step.
    if (plan_.problem.chained && each == 0) return run_as_one(back);
    Arena all = workspace_.rest();
    for (Member& member : members_) member.memory = all.take(bytes(member.call, back));
    workspace_.saw(all);
    if (!workspace_.counting()) {
      const Index parts = each > 0 ? (steps + each - 1) / each : 1;
      backend_.at_once(static_cast<int>(members_.size()), parts, each > 0, [&](int i, Index turn) {
        Member& member = members_[static_cast<std::size_t>(i)];
        LayerCall call = member.call;
        const Index part = back ? parts - 1 - turn : turn;
        if (each > 0) {
          call.part_begin = part * each;
          call.part_end = std::min(steps, call.part_begin + each);
        }
        run_part(call, member, back);
      });
    }
    members_.clear();
  }
  void run_part(const LayerCall& call, const Member& member, bool back) {
    Arena scratch(member.memory);
    if (member.also && !back) member.also(part_of(call));
    back ? backend_.backward(plan_, call, scratch) : backend_.forward(plan_, call, scratch);
    if (member.also && back) member.also(part_of(call));
  }
  // What a call takes to work in; while counting, the larger of what it may turn out to be.
  std::size_t bytes(LayerCall call, bool back) const {
    Arena counter;
    back ? backend_.backward(plan_, call, counter) : backend_.forward(plan_, call, counter);
    if (!workspace_.counting() || call.layout != dispatch::Batch::ragged) return counter.peak();
    call.layout = dispatch::Batch::rectangular;
    return std::max(counter.peak(), bytes(call, back));
  }

  Backend& backend_;
  const dispatch::Plan& plan_;
  Arena& workspace_;
  std::vector<Member> members_;
};

}  // namespace scanrnn
