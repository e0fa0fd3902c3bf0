// SPDX-License-Identifier: Apache-2.0
// Custom calls for JAX: the library's calls on XLA's buffers and stream. XLA owns all memory, the
// workspace too, and calls from threads of its own, so nothing here touches Python.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jax_call.h"

namespace scanrnn {
namespace {

Layer layer_of(const XlaCall& call, const TensorView& x) {
  LayerOptions options;
  options.input_size = x.sizes[static_cast<std::size_t>(x.rank - 1)];
  options.hidden_size = call.number("hidden_size");
  options.num_layers = static_cast<int>(call.number("num_layers"));
  options.bias = call.number("bias") != 0;
  options.batch_first = call.number("batch_first") != 0;
  options.dropout = call.real("dropout");
  options.bidirectional = call.number("bidirectional") != 0;
  return make_layer(options, call.text("cell"), call.text("variant"), call.text("domain"),
                    call.text("options"), name(x.dtype));
}

struct Planned {
  Layer layer;
  PlannedCall call;
};

// `given`: which of them the call has, in the order of its arguments.
Ragged ragged_of(XlaCall& call, const std::string& given) {
  Ragged out;
  const std::pair<const char*, TensorView*> parts[] = {
      {"lengths", &out.lengths}, {"cu_seqlens", &out.cu_seqlens}, {"reset", &out.reset}};
  for (const auto& [name, view] : parts) {
    if (given.find(name) != std::string::npos) *view = call.argument();
  }
  return out;
}

// The seed of a call that draws. XLA gives memory on the CPU no alignment to rely on.
template <class Args>
void take_seed(XlaCall& call, Args& args) {
  if (call.number("drawn") == 0) return;
  const TensorView seed = call.argument_seed();
  if (call.device().kind == Device::Kind::cpu) {
    std::memcpy(&args.seed, seed.data, sizeof args.seed);
  } else {
    args.seed_in = seed;
  }
}

BatchShape shape_of(const XlaCall& call, const TensorView& x, const Ragged& ragged) {
  using dispatch::Batch;
  if (ragged.cu_seqlens) {
    return {x.sizes[0], ragged.cu_seqlens.sizes[0] - 1, Batch::packed, call.number("longest")};
  }
  const std::size_t time = call.number("batch_first") != 0 ? 1 : 0;
  const bool whole = call.text("ragged").empty();
  return {x.sizes[time], x.sizes[1 - time], whole ? Batch::rectangular : Batch::ragged};
}

Planned plan_of(const XlaCall& call, const TensorView& x, const BatchShape& shape, bool training) {
  Layer layer = layer_of(call, x);
  const std::string strategy = call.text("strategy");
  PlannedCall planned = plan_layer(layer, call.device(), shape, training,
                                   strategy.empty() ? std::optional<std::string>() : strategy);
  return {std::move(layer), std::move(planned)};
}

// A layer and its plan, made once for each problem and kept, as description.py keeps those of the
// other array libraries. XLA calls from any of its threads, which share them.
std::shared_ptr<const Planned> kept_plan(const XlaCall& call, const TensorView& x,
                                         const Ragged& ragged, bool training) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Planned>> kept;
  constexpr std::size_t kMost = 1024;
  const Device device = call.device();
  const BatchShape shape = shape_of(call, x, ragged);
  const std::int64_t rest[] = {static_cast<std::int64_t>(settings(device)),
                               static_cast<std::int64_t>(device.kind),
                               device.index,
                               static_cast<std::int64_t>(x.dtype),
                               x.rank,
                               x.sizes[0],
                               x.sizes[1],
                               x.sizes[2],
                               shape.batch,
                               training};
  std::string key = call.attributes();
  key.append(reinterpret_cast<const char*>(rest), sizeof rest);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = kept.find(key);
    if (found != kept.end()) return found->second;
  }
  auto made = std::make_shared<const Planned>(plan_of(call, x, shape, training));
  const std::lock_guard<std::mutex> lock(mutex);
  if (kept.size() >= kMost) kept.clear();
  kept[std::move(key)] = made;
  return made;
}

void forward(XlaCall& call) {
  ForwardArgs args;
  args.x = call.argument();
  args.h0 = call.argument_state(call.number("initial"));
  args.ragged = ragged_of(call, call.text("ragged"));
  take_seed(call, args);
  while (call.arguments_left() > 0) args.params.push_back(call.argument());
  args.y = call.result();
  args.hn = call.result_state(call.number("states"));
  args.reserve = call.result_bytes();
  args.workspace = call.result_bytes();
  const auto planned = kept_plan(call, args.x, args.ragged, call.number("training") != 0);
  configure(call.device(), call.stream());
  scanrnn::forward(planned->layer, context(call.device()), planned->call, args);
}

void backward(XlaCall& call) {
  BackwardArgs args;
  const std::int64_t initial = call.number("initial");
  args.dy = call.argument();
  args.dhn = call.argument_state(call.number("states"));
  args.x = call.argument();
  args.y = call.argument();
  args.reserve = call.argument_bytes();
  args.h0 = call.argument_state(initial);
  args.ragged = ragged_of(call, call.text("ragged"));
  take_seed(call, args);
  while (call.arguments_left() > 0) args.params.push_back(call.argument());
  args.dx = call.result();
  args.dh0 = call.result_state(initial);
  for (std::size_t i = 0; i < args.params.size(); ++i) args.dparams.push_back(call.result());
  args.workspace = call.result_bytes();
  const auto planned = kept_plan(call, args.x, args.ragged, true);
  configure(call.device(), call.stream());
  scanrnn::backward(planned->layer, context(call.device()), planned->call, args);
}

// ---- what XLA calls

// The least version with all that is used here, so that every jaxlib since takes the handlers.
constexpr int kMinorVersion = 1;

// The first call of a handler asks which version of the interface it was written for.
bool answer_metadata(const XLA_FFI_CallFrame& frame) {
  for (XLA_FFI_Extension_Base* e = frame.extension_start; e; e = e->next) {
    if (e->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(e)->metadata;
    metadata.api_version.major_version = XLA_FFI_API_MAJOR;
    metadata.api_version.minor_version = kMinorVersion;
    metadata.traits = 0;
    return true;
  }
  return false;
}

template <void (*run)(XlaCall&), bool cuda>
XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
  const auto failed = [&](XLA_FFI_Error_Code code, const char* message) {
    XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
    return frame->api->XLA_FFI_Error_Create(&args);
  };
  if (answer_metadata(*frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  try {
    XlaCall call(*frame, cuda);
    run(call);
    return nullptr;
  } catch (const value_error& e) {
    return failed(XLA_FFI_Error_Code_INVALID_ARGUMENT, e.what());
  } catch (const type_error& e) {
    return failed(XLA_FFI_Error_Code_INVALID_ARGUMENT, e.what());
  } catch (const std::exception& e) {
    return failed(XLA_FFI_Error_Code_INTERNAL, e.what());
  }
}

template <void (*run)(XlaCall&)>
py::tuple handlers() {
  const auto capsule = [](XLA_FFI_Error* (*f)(XLA_FFI_CallFrame*)) {
    return py::capsule(reinterpret_cast<void*>(f), "xla._CUSTOM_CALL_TARGET");
  };
  return py::make_tuple(capsule(&handler<run, false>), capsule(&handler<run, true>));
}

}  // namespace

void bind_jax_ffi(py::module_& m) {
  // By name: what runs on the CPU, and on CUDA.
  m.def("jax_targets", [] {
    py::dict out;
    out["scanrnn_forward"] = handlers<&forward>();
    out["scanrnn_backward"] = handlers<&backward>();
    out["scanrnn_scan"] = handlers<&xla_scan>();
    out["scanrnn_scan_backward"] = handlers<&xla_scan_backward>();
    return out;
  });
}

}  // namespace scanrnn
