// SPDX-License-Identifier: Apache-2.0
// What a custom call of JAX brings: XLA's buffers and attributes as the library's arguments.
#pragma once

#include <xla/ffi/api/c_api.h>

#include <algorithm>
#include <string>

#include "calls.h"
#include "exchange.h"
#include "names.h"
#include "scanrnn/memory.h"

namespace scanrnn {

// A call frame as the library's arguments.
class XlaCall {
 public:
  XlaCall(const XLA_FFI_CallFrame& frame, bool cuda) : frame_(frame) {
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
  // A number of 64 bits as JAX has it without jax_enable_x64: two of uint32, the lower half first.
  TensorView argument_seed() {
    const XLA_FFI_Buffer& buffer = next_argument();
    if (buffer.dtype != XLA_FFI_DataType_U32 || buffer.rank != 1 || buffer.dims[0] != 2) {
      throw value_error("seed: expected two numbers of uint32");
    }
    return TensorView::of(buffer.data, Dtype::int64, {1}, device_);
  }
  Span result_bytes() { return span(next_result()); }
  std::int64_t arguments_left() const { return frame_.args.size - argument_; }
  State argument_state(std::int64_t count) {
    return state_of(count, [this] { return argument(); });
  }
  State result_state(std::int64_t count) {
    return state_of(count, [this] { return result(); });
  }

  std::int64_t number(const char* name) const {
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(find(name, XLA_FFI_AttrType_SCALAR));
    if (scalar->dtype != XLA_FFI_DataType_S64) {
      throw error(std::string(name) + ": expected an int64");
    }
    return *static_cast<const std::int64_t*>(scalar->value);
  }
  double real(const char* name) const {
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(find(name, XLA_FFI_AttrType_SCALAR));
    if (scalar->dtype != XLA_FFI_DataType_F64) {
      throw error(std::string(name) + ": expected a float64");
    }
    return *static_cast<const double*>(scalar->value);
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
        const bool known =
            scalar->dtype == XLA_FFI_DataType_S64 || scalar->dtype == XLA_FFI_DataType_F64;
        if (known) add(scalar->value, sizeof(std::int64_t));
      }
    }
    return out;
  }

 private:
  template <class Next>
  static State state_of(std::int64_t count, Next&& next) {
    State out;
    const auto tensors = std::min(static_cast<std::size_t>(count), kStateTensors.size());
    for (std::size_t i = 0; i < tensors; ++i) out.*kStateTensors[i] = next();
    return out;
  }
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
      case XLA_FFI_DataType_S64:
        return Dtype::int64;
      case XLA_FFI_DataType_S32:
        return Dtype::int32;
      default:
        throw type_error("expected numbers of a dtype that is known here, got XLA's type " +
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

// The bare scan and its backward pass (jax_scans.cpp).
void xla_scan(XlaCall& call);
void xla_scan_backward(XlaCall& call);

}  // namespace scanrnn
