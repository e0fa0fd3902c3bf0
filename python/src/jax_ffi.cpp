// SPDX-License-Identifier: Apache-2.0
// Custom calls for JAX: the library's calls on XLA's buffers and stream. XLA owns all memory, the
// workspace too, and calls from threads of its own, so nothing here touches Python.
#include <xla/ffi/api/c_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "exchange.h"
#include "names.h"
#include "scanrnn/memory.h"

namespace scanrnn {
namespace {

// ---- a call frame as the library's arguments

class Call {
 public:
  Call(const XLA_FFI_CallFrame& frame, bool cuda) : frame_(frame) {
    if (!cuda) return;
    // The ordinal that XLA gives counts the devices that JAX may see; the memory knows.
    for (std::int64_t i = 0; i < frame.args.size; ++i) look_at(frame.args.args[i]);
    for (std::int64_t i = 0; i < frame.rets.size; ++i) look_at(frame.rets.rets[i]);
    XLA_FFI_Stream_Get_Args args{XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame.ctx, nullptr};
    if (frame.api->XLA_FFI_Stream_Get(&args)) throw error("XLA gave no stream");
    stream_ = args.stream;
  }
  Device device() const { return device_; }
  void* stream() const { return stream_; }

  // Arguments, then results, each in the order of the Python side.
  TensorView argument() { return view(next_argument()); }
  TensorView result() { return view(next_result()); }
  Span argument_bytes() { return span(next_argument()); }
  Span result_bytes() { return span(next_result()); }
  std::int64_t arguments_left() const { return frame_.args.size - argument_; }
  State argument_state(std::int64_t count) {
    State out;
    if (count > 0) out.h = argument();
    if (count > 1) out.c = argument();
    return out;
  }
  State result_state(std::int64_t count) {
    State out;
    if (count > 0) out.h = result();
    if (count > 1) out.c = result();
    return out;
  }

  std::int64_t number(const char* name) const {
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(find(name, XLA_FFI_AttrType_SCALAR));
    if (scalar->dtype != XLA_FFI_DataType_S64) {
      throw error(std::string(name) + ": expected an int64");
    }
    return *static_cast<const std::int64_t*>(scalar->value);
  }
  std::string text(const char* name) const {
    const auto* text = static_cast<const XLA_FFI_ByteSpan*>(find(name, XLA_FFI_AttrType_STRING));
    return std::string(text->ptr, text->len);
  }
  // All attributes by name, as bytes that differ where any of them does.
  std::string attributes() const {
    std::string out;
    const auto add = [&](const void* data, std::size_t bytes) {
      out.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
      out.append(static_cast<const char*>(data), bytes);
    };
    for (std::int64_t i = 0; i < frame_.attrs.size; ++i) {
      add(frame_.attrs.names[i]->ptr, frame_.attrs.names[i]->len);
      if (frame_.attrs.types[i] == XLA_FFI_AttrType_STRING) {
        const auto* text = static_cast<const XLA_FFI_ByteSpan*>(frame_.attrs.attrs[i]);
        add(text->ptr, text->len);
      } else if (frame_.attrs.types[i] == XLA_FFI_AttrType_SCALAR) {
        const auto* scalar = static_cast<const XLA_FFI_Scalar*>(frame_.attrs.attrs[i]);
        if (scalar->dtype == XLA_FFI_DataType_S64) add(scalar->value, sizeof(std::int64_t));
      }
    }
    return out;
  }

 private:
  void look_at(const void* buffer) {
    void* data = static_cast<const XLA_FFI_Buffer*>(buffer)->data;
    if (data && device_.kind == Device::Kind::cpu) device_ = device_of(data);
  }
  const XLA_FFI_Buffer& next_argument() {
    return next(frame_.args.args, frame_.args.size, argument_);
  }
  const XLA_FFI_Buffer& next_result() { return next(frame_.rets.rets, frame_.rets.size, result_); }
  // A call that somebody else wrote may have too few.
  static const XLA_FFI_Buffer& next(void** all, std::int64_t count, std::int64_t& index) {
    if (index >= count) throw error("expected more than " + std::to_string(index) + " tensors");
    return *static_cast<const XLA_FFI_Buffer*>(all[index++]);
  }
  const void* find(const char* name, XLA_FFI_AttrType type) const {
    const XLA_FFI_Attrs& all = frame_.attrs;
    for (std::int64_t i = 0; i < all.size; ++i) {
      if (std::string(all.names[i]->ptr, all.names[i]->len) == name && all.types[i] == type) {
        return all.attrs[i];
      }
    }
    throw error(std::string("no attribute ") + name);
  }
  static Dtype dtype_of(const XLA_FFI_Buffer& buffer) {
    switch (buffer.dtype) {
      case XLA_FFI_DataType_F64:
        return Dtype::float64;
      case XLA_FFI_DataType_F32:
        return Dtype::float32;
      case XLA_FFI_DataType_BF16:
        return Dtype::bfloat16;
      case XLA_FFI_DataType_F16:
        return Dtype::float16;
      case XLA_FFI_DataType_C128:
        return Dtype::complex128;
      case XLA_FFI_DataType_C64:
        return Dtype::complex64;
      case XLA_FFI_DataType_PRED:
        return Dtype::boolean;
      default:
        throw type_error("expected floating-point numbers, got XLA's type " +
                         std::to_string(buffer.dtype));
    }
  }
  TensorView view(const XLA_FFI_Buffer& buffer) const {
    static char nothing;  // a tensor of no elements is not an absent one
    if (buffer.rank > kMaxRank) throw value_error("expected at most three axes");
    TensorView out;
    out.data = buffer.data ? buffer.data : &nothing;
    out.dtype = dtype_of(buffer);
    out.device = device_;
    out.rank = static_cast<int>(buffer.rank);
    std::int64_t stride = 1;
    for (auto axis = static_cast<std::size_t>(out.rank); axis-- > 0;) {
      out.sizes[axis] = buffer.dims[axis];
      out.strides[axis] = stride;
      stride *= buffer.dims[axis];
    }
    return out;
  }
  static Span span(const XLA_FFI_Buffer& buffer) {
    return {buffer.data, static_cast<std::size_t>(buffer.dims[0])};
  }

  const XLA_FFI_CallFrame& frame_;
  Device device_;
  void* stream_ = nullptr;
  std::int64_t argument_ = 0, result_ = 0;
};

Layer layer_of(const Call& call, const TensorView& x) {
  LayerOptions options;
  options.input_size = x.sizes[2];
  options.hidden_size = call.number("hidden_size");
  options.num_layers = static_cast<int>(call.number("num_layers"));
  options.bias = call.number("bias") != 0;
  options.batch_first = call.number("batch_first") != 0;
  options.bidirectional = call.number("bidirectional") != 0;
  return make_layer(options, call.text("cell"), call.text("variant"), call.text("domain"),
                    name(x.dtype));
}

struct Planned {
  Layer layer;
  PlannedCall call;
};

Planned plan_of(const Call& call, const TensorView& x, bool training) {
  Layer layer = layer_of(call, x);
  const std::size_t time = layer.options().batch_first ? 1 : 0;
  const std::string strategy = call.text("strategy");
  PlannedCall planned = plan_layer(layer, call.device(), x.sizes[time], x.sizes[1 - time], training,
                                   strategy.empty() ? std::optional<std::string>() : strategy);
  return {std::move(layer), std::move(planned)};
}

// A layer and its plan, made once for each problem and kept, as description.py keeps those of the
// other array libraries. XLA calls from any of its threads, which share them.
std::shared_ptr<const Planned> kept_plan(const Call& call, const TensorView& x, bool training) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Planned>> kept;
  constexpr std::size_t kMost = 1024;
  const Device device = call.device();
  const std::int64_t rest[] = {static_cast<std::int64_t>(settings(device)),
                               static_cast<std::int64_t>(device.kind),
                               device.index,
                               static_cast<std::int64_t>(x.dtype),
                               x.sizes[0],
                               x.sizes[1],
                               x.sizes[2],
                               training};
  std::string key = call.attributes();
  key.append(reinterpret_cast<const char*>(rest), sizeof rest);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = kept.find(key);
    if (found != kept.end()) return found->second;
  }
  auto made = std::make_shared<const Planned>(plan_of(call, x, training));
  const std::lock_guard<std::mutex> lock(mutex);
  if (kept.size() >= kMost) kept.clear();
  kept[std::move(key)] = made;
  return made;
}

void forward(Call& call) {
  ForwardArgs args;
  args.x = call.argument();
  args.h0 = call.argument_state(call.number("initial"));
  while (call.arguments_left() > 0) args.params.push_back(call.argument());
  args.y = call.result();
  args.hn = call.result_state(call.number("states"));
  args.reserve = call.result_bytes();
  args.workspace = call.result_bytes();
  const auto planned = kept_plan(call, args.x, call.number("training") != 0);
  configure(call.device(), call.stream());
  scanrnn::forward(planned->layer, context(call.device()), planned->call, args);
}

void backward(Call& call) {
  BackwardArgs args;
  const std::int64_t initial = call.number("initial");
  args.dy = call.argument();
  args.dhn = call.argument_state(call.number("states"));
  args.x = call.argument();
  args.y = call.argument();
  args.reserve = call.argument_bytes();
  args.h0 = call.argument_state(initial);
  while (call.arguments_left() > 0) args.params.push_back(call.argument());
  args.dx = call.result();
  args.dh0 = call.result_state(initial);
  for (std::size_t i = 0; i < args.params.size(); ++i) args.dparams.push_back(call.result());
  args.workspace = call.result_bytes();
  const auto planned = kept_plan(call, args.x, true);
  configure(call.device(), call.stream());
  scanrnn::backward(planned->layer, context(call.device()), planned->call, args);
}

// ---- a bare scan of arrays [B,T,N] and states [B,N]

class ScanFrame {
 public:
  explicit ScanFrame(Call& call) : call_(call), given_(" " + call.text("given") + " ") {}

  // The arguments that are there come in the order in which they are asked for.
  TensorView argument(const std::string& name) {
    if (given_.find(" " + name + " ") == std::string::npos) return {};
    const TensorView found = call_.argument();
    if (name == "a") first_ = found;
    return time_first(found);
  }
  TensorView result() { return time_first(call_.result()); }

  template <class Args>
  void read(Args& args) {
    args.form = parse_form(call_.text("form"));
    args.reverse = call_.number("reverse") != 0;
    args.a = argument("a");
    args.b = argument("b");
    args.sign_b = argument("sign_b");
    args.reset = argument("reset");
    args.h0 = argument("h_0");
    args.sign_h0 = argument("sign_h_0");
  }
  PlannedCall plan(const TensorView& a, ScanForm form, bool training) const {
    ScanShape shape;
    shape.steps = a.sizes[0];
    shape.lines = a.sizes[1];
    shape.rows = a.sizes[2];
    shape.dtype = a.dtype;
    shape.form = form;
    shape.training = training;
    shape.time_contiguous = first_.sizes[2] == 1;
    return plan_scan(call_.device(), shape, std::nullopt);
  }

 private:
  // Time becomes the first axis; lines of one row become rows. A reset may be one for all rows.
  TensorView time_first(const TensorView& view) const {
    TensorView out = view;
    const std::int64_t lines = view.sizes[0], rows = first_.sizes[2];
    if (view.rank == 2) {
      if (rows == 1) {
        out.sizes = {1, lines};
        out.strides = {lines, 1};
      }
      return out;
    }
    if (view.rank != 3) throw value_error("expected arrays of two or three axes");
    const std::int64_t steps = view.sizes[1], own = view.sizes[2];
    if (rows == 1) {
      out.sizes = {steps, own, lines};
      out.strides = {1, steps * lines, steps};
      return out;
    }
    const bool spread = own == 1 && view.dtype == Dtype::boolean;
    out.sizes = {steps, lines, spread ? rows : own};
    out.strides = {view.strides[1], view.strides[0], spread ? 0 : 1};
    return out;
  }

  Call& call_;
  std::string given_;
  TensorView first_;
};

void bare_scan(Call& call) {
  ScanFrame frame(call);
  ScanArgs args;
  frame.read(args);
  args.h = frame.result();
  if (args.form == ScanForm::log_output) args.sign_h = frame.result();
  args.workspace = call.result_bytes();
  const PlannedCall planned = frame.plan(args.a, args.form, false);
  configure(call.device(), call.stream());
  linear_scan(context(call.device()), planned.plan, args);
}

void bare_scan_backward(Call& call) {
  ScanFrame frame(call);
  ScanBackwardArgs args;
  frame.read(args);
  args.h = frame.argument("h");
  args.sign_h = frame.argument("sign_h");
  args.dh = frame.argument("dh");
  args.da = frame.result();
  args.db = frame.result();
  if (args.h0) args.dh0 = frame.result();
  args.workspace = call.result_bytes();
  const PlannedCall planned = frame.plan(args.a, args.form, true);
  configure(call.device(), call.stream());
  linear_scan_backward(context(call.device()), planned.plan, args);
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

template <void (*run)(Call&), bool cuda>
XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
  const auto failed = [&](XLA_FFI_Error_Code code, const char* message) {
    XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
    return frame->api->XLA_FFI_Error_Create(&args);
  };
  if (answer_metadata(*frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  try {
    Call call(*frame, cuda);
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

template <void (*run)(Call&)>
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
    out["scanrnn_scan"] = handlers<&bare_scan>();
    out["scanrnn_scan_backward"] = handlers<&bare_scan_backward>();
    return out;
  });
}

}  // namespace scanrnn
