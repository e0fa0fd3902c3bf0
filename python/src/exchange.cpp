// SPDX-License-Identifier: Apache-2.0
// Arrays in: NumPy's, DLPack by capsules and by functions in C, __cuda_array_interface__.
#include "exchange.h"

#include <pybind11/stl.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "calls.h"
#include "dlpack_type.h"
#include "names.h"
#include "scanrnn/memory.h"

namespace scanrnn {
namespace {

using Sizes64 = std::vector<std::int64_t>;

// `strides` null: contiguous.
TensorView make_view(const std::string& name, void* data, Dtype dtype, Device device,
                     std::size_t rank, const std::int64_t* sizes, const std::int64_t* strides) {
  if (rank > kMaxRank) {
    throw value_error(name + ": expected at most " + std::to_string(kMaxRank) + " axes, got " +
                      std::to_string(rank));
  }
  TensorView out;
  out.data = data;
  out.dtype = dtype;
  out.device = device;
  std::int64_t packed = 1;
  for (std::size_t axis = rank; axis-- > 0;) {
    out.sizes[axis] = sizes[axis];
    out.strides[axis] = strides ? strides[axis] : packed;
    packed *= sizes[axis];
    if (out.strides[axis] < 0 && sizes[axis] > 1) {
      throw value_error(name + ": expected strides of at least 0, got " +
                        std::to_string(out.strides[axis]) + " on axis " + std::to_string(axis) +
                        ": pass a contiguous copy");
    }
  }
  out.rank = static_cast<int>(rank);
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
  for (const Dtype dtype : kArrayDtypes) {
    const DLDataType known = dlpack_type(dtype);
    if (type.code == known.code && type.bits == known.bits && type.lanes == 1) return dtype;
  }
  const char* kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  std::string got =
      (type.code <= kDLBool ? kinds[type.code] : "dtype code " + std::to_string(type.code) + ", ");
  got += std::to_string(type.bits);
  if (type.lanes != 1) got += "x" + std::to_string(type.lanes);
  const char* advice = ": convert it first, nothing is cast";
  if (type.code == kDLComplex) advice = ": pass its real and imaginary parts";
  if (type.bits < 8) advice = ", which is less than a byte: unpack it into one of these first";
  throw type_error(name + ": expected one of " +
                   quoted(kArrayDtypes, [](Dtype d) { return scanrnn::name(d); }) + ", got " + got +
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
  const Dtype dtype = dtype_of(name, t.dtype);
  void* data = t.data ? static_cast<char*>(t.data) + t.byte_offset : nullptr;
  return make_view(name, data, dtype, device_of(name, t.device), static_cast<std::size_t>(t.ndim),
                   t.shape, t.strides);
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
  if (strides && strides->size() != fields.sizes.size()) {
    throw value_error(name + ": expected a stride for each of " +
                      std::to_string(fields.sizes.size()) + " axes, got " +
                      std::to_string(strides->size()));
  }
  const Device device = fields.data ? scanrnn::device_of(fields.data, name) : Device::cuda();
  return {make_view(name, fields.data, element, device, fields.sizes.size(), fields.sizes.data(),
                    strides ? strides->data() : nullptr),
          {}};
}

// ---- DLPack's functions in C: https://dmlc.github.io/dlpack/latest/python_spec.html

// Those of a type of arrays; null where it has none that we can use. They live as long as the
// process.
const DLPackExchangeAPI* functions_of(PyTypeObject* type) {
  static std::unordered_map<PyTypeObject*, const DLPackExchangeAPI*> known;  // under the GIL
  const auto found = known.find(type);
  if (found != known.end()) return found->second;
  const py::handle kind(reinterpret_cast<PyObject*>(type));
  const py::object given = py::getattr(kind, "__dlpack_c_exchange_api__", py::none());
  constexpr const char* kName = "dlpack_exchange_api";
  if (!PyCapsule_IsValid(given.ptr(), kName)) return nullptr;
  auto* header =
      static_cast<const DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(given.ptr(), kName));
  while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  const auto* functions = reinterpret_cast<const DLPackExchangeAPI*>(header);
  if (!functions || !functions->dltensor_from_py_object_no_sync) return nullptr;
  kind.inc_ref();  // so that no other type takes its place
  known.emplace(type, functions);
  return functions;
}

// Raises what arrays/dlpack.py makes of the error with which a library refused its memory.
[[noreturn]] void refuse(const char* name, py::handle value) {
  py::error_already_set problem;
  for (PyObject* kind : {PyExc_RuntimeError, PyExc_BufferError, PyExc_ValueError}) {
    if (!problem.matches(kind)) continue;
    const auto refused = py::module_::import("scanrnn.arrays.dlpack").attr("refused");
    const py::object raised = refused(name, value, problem.value());
    raised.attr("__cause__") = problem.value();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    throw py::error_already_set();
  }
  throw problem;
}

DLTensor look_at(const char* name, py::handle value) {
  const DLPackExchangeAPI* functions = functions_of(Py_TYPE(value.ptr()));
  if (!functions) {
    throw type_error(std::string(name) + ": expected an array, got " +
                     py::repr(value).cast<std::string>());
  }
  DLTensor out;
  if (functions->dltensor_from_py_object_no_sync(value.ptr(), &out) != 0) refuse(name, value);
  return out;
}

Dtype dtype_of(const py::dtype& dtype) {
  constexpr int kNumpyHalf = 23;  // pybind11 has no name for it
  switch (dtype.num()) {          // the numbers of NumPy's own types are part of its ABI
    case kNumpyHalf:
      return Dtype::float16;
    case py::detail::npy_api::NPY_FLOAT_:
      return Dtype::float32;
    case py::detail::npy_api::NPY_DOUBLE_:
      return Dtype::float64;
    default:
      return parse_array_dtype(py::str(py::object(dtype.attr("name"))));
  }
}

}  // namespace

// ---- arguments

namespace {

// Whether it is one of the extension's own, at the cost of a comparison.
template <class T>
bool is(py::handle value) {
  static PyObject* const type = py::type::of<T>().release().ptr();
  return PyObject_TypeCheck(value.ptr(), reinterpret_cast<PyTypeObject*>(type)) != 0;
}

}  // namespace

TensorView view_of(const py::array& array) {
  if (array.ndim() > kMaxRank) {
    throw value_error("an array: expected at most " + std::to_string(kMaxRank) + " axes, got " +
                      std::to_string(array.ndim()));
  }
  TensorView out;
  out.data = const_cast<void*>(array.data());
  out.dtype = dtype_of(array.dtype());
  out.rank = static_cast<int>(array.ndim());
  for (int i = 0; i < out.rank; ++i) {
    const auto axis = static_cast<std::size_t>(i);
    out.sizes[axis] = array.shape(i);
    out.strides[axis] = array.strides(i) / array.itemsize();
  }
  return out;
}

TensorView view_of(const char* name, py::handle value) {
  if (value.is_none()) return {};
  if (py::isinstance<py::array>(value)) {
    return view_of(py::reinterpret_borrow<py::array>(value));
  }
  if (is<Tensor>(value)) return value.cast<const Tensor&>().view;
  return view_of(std::string(name), look_at(name, value));
}

std::vector<TensorView> views_of(const char* name, py::handle values) {
  if (is<Tensors>(values)) return values.cast<const Tensors&>().views;
  std::vector<TensorView> out;
  for (const py::handle value : values) out.push_back(view_of(name, value));
  return out;
}

Span span_of(const char* name, py::handle value) {
  if (value.is_none()) return {};
  if (is<Buffer>(value)) return value.cast<const Buffer&>().span();
  if (py::isinstance<py::tuple>(value)) {
    const auto parts = py::reinterpret_borrow<py::tuple>(value);  // and what keeps the memory
    return {reinterpret_cast<void*>(parts[0].cast<std::uintptr_t>()), parts[1].cast<std::size_t>()};
  }
  const DLTensor found = look_at(name, value);
  std::size_t bytes = found.dtype.bits / 8u;
  for (int axis = 0; axis < found.ndim; ++axis) {
    bytes *= static_cast<std::size_t>(found.shape[axis]);
  }
  return {found.data ? static_cast<char*>(found.data) + found.byte_offset : nullptr, bytes};
}

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
  py::class_<Tensors>(m, "Tensors").def(py::init([](const std::string& name, py::object values) {
    return Tensors{views_of(name.c_str(), values), std::move(values)};
  }));
  m.def("from_dlpack", &from_dlpack);
  m.def("from_interface", &from_interface);
  m.def("order_streams", [](Device device, std::uintptr_t before, std::uintptr_t after) {
    order_streams(context(device), reinterpret_cast<void*>(before), reinterpret_cast<void*>(after));
  });
}

}  // namespace scanrnn
