// SPDX-License-Identifier: Apache-2.0
// Other libraries' arrays in: DLPack, __cuda_array_interface__ and plain addresses.
#include "exchange.h"

#include <dlpack/dlpack.h>
#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "calls.h"
#include "names.h"
#include "scanrnn/memory.h"

namespace scanrnn {
namespace {

namespace py = pybind11;

using Sizes64 = std::vector<std::int64_t>;

TensorView make_view(const std::string& name, void* data, Dtype dtype, Device device,
                     const Sizes64& sizes, const std::optional<Sizes64>& strides) {
  if (sizes.size() > kMaxRank) {
    throw value_error(name + ": expected at most " + std::to_string(kMaxRank) + " axes, got " +
                      std::to_string(sizes.size()));
  }
  if (strides && strides->size() != sizes.size()) {
    throw value_error(name + ": expected a stride for each of " + std::to_string(sizes.size()) +
                      " axes, got " + std::to_string(strides->size()));
  }
  TensorView out;
  out.data = data;
  out.dtype = dtype;
  out.device = device;
  std::int64_t packed = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    out.sizes[axis] = sizes[axis];
    out.strides[axis] = strides ? (*strides)[axis] : packed;
    packed *= sizes[axis];
    if (out.strides[axis] < 0 && sizes[axis] > 1) {
      throw value_error(name + ": expected strides of at least 0, got " +
                        std::to_string(out.strides[axis]) + " on axis " + std::to_string(axis) +
                        ": pass a contiguous copy");
    }
  }
  out.rank = static_cast<int>(sizes.size());
  if (!data && packed != 0) {
    throw value_error(name + ": expected memory of " + std::to_string(packed) +
                      " elements, got a null pointer: it is a tensor without data");
  }
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) != 0) {
    throw value_error(name + ": expected an address in whole elements of " +
                      std::to_string(size_of(dtype)) + " bytes: pass a contiguous copy");
  }
  return out;
}

Dtype dtype_of(const std::string& name, DLDataType type) {
  const std::pair<int, Dtype> floats[] = {
      {64, Dtype::float64}, {32, Dtype::float32}, {16, Dtype::float16}};
  if (type.lanes == 1 && type.code == kDLFloat) {
    for (const auto& [bits, dtype] : floats) {
      if (type.bits == bits) return dtype;
    }
  }
  if (type.lanes == 1 && type.code == kDLBfloat && type.bits == 16) return Dtype::bfloat16;
  const char* kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  std::string got =
      (type.code <= kDLBool ? kinds[type.code] : "dtype code " + std::to_string(type.code) + ", ");
  got += std::to_string(type.bits);
  if (type.lanes != 1) got += "x" + std::to_string(type.lanes);
  const char* advice = ": convert it first, nothing is cast";
  if (type.code == kDLComplex) advice = ": pass its real and imaginary parts";
  if (type.bits < 8) advice = ", which is less than a byte: unpack it into one of these first";
  throw type_error(name + ": expected one of " +
                   quoted(kDtypes, [](Dtype d) { return scanrnn::name(d); }) + ", got " + got +
                   advice);
}

Device device_of(const std::string& name, DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return Device::cpu();
    case kDLCUDA:
    case kDLCUDAManaged:
      return Device::cuda(device.device_id);
    default:
      throw type_error(
          name + ": expected memory of the CPU or of a CUDA device, got DLPack device (" +
          std::to_string(device.device_type) + ", " + std::to_string(device.device_id) + ")");
  }
}

TensorView view_of(const std::string& name, const DLTensor& t) {
  const auto rank = static_cast<std::size_t>(t.ndim);
  std::optional<Sizes64> strides;
  if (t.strides) strides.emplace(t.strides, t.strides + rank);
  const Dtype dtype = dtype_of(name, t.dtype);
  void* data = t.data ? static_cast<char*>(t.data) + t.byte_offset : nullptr;
  return make_view(name, data, dtype, device_of(name, t.device), {t.shape, t.shape + rank},
                   strides);
}

// Takes what a capsule holds: its release runs when the last copy of the Tensor is gone.
template <class Managed>
Tensor take(const std::string& name, const py::capsule& capsule, const char* used) {
  auto* managed = capsule.get_pointer<Managed>();
  if (PyCapsule_SetName(capsule.ptr(), used) != 0) throw py::error_already_set();
  Tensor out;
  out.owner = std::shared_ptr<void>(managed, [](void* p) {
    auto* self = static_cast<Managed*>(p);
    if (self->deleter) self->deleter(self);
  });
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    // Only deleter() lies where it always does when the major version is another.
    if (managed->version.major != DLPACK_MAJOR_VERSION) {
      throw value_error(name + ": expected DLPack " + std::to_string(DLPACK_MAJOR_VERSION) +
                        ".x, got " + std::to_string(managed->version.major) + "." +
                        std::to_string(managed->version.minor) +
                        ": pass max_version=(1, 0) to __dlpack__");
    }
  }
  out.view = view_of(name, managed->dl_tensor);
  return out;
}

Tensor from_dlpack(const std::string& name, const py::object& given, bool writable) {
  if (!py::isinstance<py::capsule>(given)) {
    throw type_error(name + ": expected a DLPack capsule, got " +
                     py::repr(given).cast<std::string>());
  }
  const auto capsule = py::reinterpret_borrow<py::capsule>(given);
  const char* kind = capsule.name();
  if (kind && std::string(kind) == kVersionedCapsule) {
    const bool read_only =
        capsule.get_pointer<DLManagedTensorVersioned>()->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
    if (writable && read_only)
      throw value_error(name + ": expected memory to write, got read-only");
    return take<DLManagedTensorVersioned>(name, capsule, "used_dltensor_versioned");
  }
  if (kind && std::string(kind) == kLegacyCapsule) {
    return take<DLManagedTensor>(name, capsule, "used_dltensor");
  }
  throw type_error(name + ": expected a DLPack capsule that nobody has taken, got one named '" +
                   (kind ? kind : "") + "'");
}

// "<f4" is the order of bytes, the kind, and the bytes of an element.
DLDataType type_of(const std::string& name, const std::string& text) {
  DLDataType out{kDLOpaqueHandle, 0, 1};
  for (const auto& [letter, code] : {std::pair{'f', kDLFloat},
                                     {'c', kDLComplex},
                                     {'i', kDLInt},
                                     {'u', kDLUInt},
                                     {'b', kDLBool}}) {
    if (text.size() > 2 && text[1] == letter) out.code = code;
  }
  const std::string bytes = text.size() > 2 ? text.substr(2) : "";
  const bool numbers = !bytes.empty() && bytes.size() <= 2 &&
                       bytes.find_first_not_of("0123456789") == std::string::npos;
  if (out.code == kDLOpaqueHandle || !numbers || text[0] == '>') {
    throw type_error(name + ": expected floating-point numbers in this machine's order of bytes, " +
                     "got '" + text + "'");
  }
  out.bits = static_cast<std::uint8_t>(8 * std::stoi(bytes));
  return out;
}

// __cuda_array_interface__, version 3 and before:
// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
struct Interface {
  std::string type;
  Sizes64 sizes;
  std::optional<Sizes64> strides;  // in bytes
  void* data = nullptr;
};

Interface read_interface(const std::string& name, const py::object& given) {
  try {
    const auto fields = given.cast<py::dict>();
    Interface out;
    out.type = fields["typestr"].cast<std::string>();
    out.sizes = fields["shape"].cast<Sizes64>();
    if (fields.contains("strides")) out.strides = fields["strides"].cast<std::optional<Sizes64>>();
    const auto address = fields["data"].cast<std::pair<std::uintptr_t, bool>>().first;
    out.data = reinterpret_cast<void*>(address);
    if (fields.contains("mask") && !fields["mask"].is_none()) {
      throw type_error(name + ": expected an array without a mask");
    }
    return out;
  } catch (const py::cast_error&) {
  } catch (const py::error_already_set&) {  // a field that is not there
  }
  throw type_error(name + ": expected a __cuda_array_interface__ of typestr, shape and data, got " +
                   py::repr(given).cast<std::string>());
}

Tensor from_interface(const std::string& name, const py::object& given) {
  const Interface fields = read_interface(name, given);
  const Dtype element = dtype_of(name, type_of(name, fields.type));
  const auto bytes = static_cast<std::int64_t>(size_of(element));
  std::optional<Sizes64> strides;
  if (fields.strides) strides.emplace();
  for (const std::int64_t stride : fields.strides.value_or(Sizes64{})) {
    if (stride % bytes != 0) {
      throw value_error(name + ": expected strides in whole elements of " + std::to_string(bytes) +
                        " bytes, got " + std::to_string(stride) + " bytes: pass a contiguous copy");
    }
    strides->push_back(stride / bytes);
  }
  try {
    const Device device = fields.data ? scanrnn::device_of(fields.data) : Device::cuda();
    return {make_view(name, fields.data, element, device, fields.sizes, strides), {}};
  } catch (const type_error& e) {
    throw type_error(name + ": " + e.what());
  }
}

Tensor from_address(const std::string& name, std::uintptr_t address, const std::string& dtype,
                    Device device, const Sizes64& sizes, const std::optional<Sizes64>& strides) {
  return {
      make_view(name, reinterpret_cast<void*>(address), parse_dtype(dtype), device, sizes, strides),
      {}};
}

}  // namespace

void bind_exchange(py::module_& m) {
  py::class_<Tensor>(m, "Tensor")
      .def_property_readonly("shape",
                             [](const Tensor& t) {
                               return py::tuple(py::cast(Sizes64(
                                   t.view.sizes.begin(), t.view.sizes.begin() + t.view.rank)));
                             })
      .def_property_readonly("strides",
                             [](const Tensor& t) {
                               return py::tuple(py::cast(Sizes64(
                                   t.view.strides.begin(), t.view.strides.begin() + t.view.rank)));
                             })
      .def_property_readonly("dtype", [](const Tensor& t) { return name(t.view.dtype); })
      .def_property_readonly("device", [](const Tensor& t) { return name(t.view.device); })
      .def_property_readonly(
          "address", [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.view.data); });
  m.def("from_dlpack", &from_dlpack);
  m.def("from_interface", &from_interface);
  m.def("from_address", &from_address);
  m.def("order_streams", [](Device device, std::uintptr_t before, std::uintptr_t after) {
    order_streams(context(device), reinterpret_cast<void*>(before), reinterpret_cast<void*>(after));
  });
}

}  // namespace scanrnn
