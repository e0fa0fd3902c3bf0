// SPDX-License-Identifier: Apache-2.0
// Memory of the library's own: what a call works in, and copies of NumPy's arrays on a device. It
// belongs to the default stream, which outlives every context.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "calls.h"
#include "exchange.h"
#include "scanrnn/memory.h"

namespace scanrnn {
namespace {

std::shared_ptr<Buffer> buffer(Device device, std::size_t bytes) {
  configure(device);
  return std::make_shared<Buffer>(context(device), bytes);
}

// What NumPy has on the host, on a device.
struct Copy : Tensor {
  Copy(Device device, const py::array& array) {
    view = view_of(array);
    memory = buffer(device, static_cast<std::size_t>(array.nbytes()));
    view.data = memory->data();
    view.device = device;
    owner = memory;
  }
  void upload(const py::array& array) {
    const void* host = array.data();
    const py::gil_scoped_release unlocked;
    memory->upload(host, memory->bytes());
  }
  // Waits for what has been enqueued.
  void download(py::array& array) const {
    void* host = array.mutable_data();
    const py::gil_scoped_release unlocked;
    memory->download(host, memory->bytes());
  }

  // The same memory with other sizes, and strides in elements.
  Tensor walked(const std::vector<std::int64_t>& sizes,
                const std::vector<std::int64_t>& strides) const {
    if (sizes.size() > kMaxRank || sizes.size() != strides.size()) {
      throw value_error("sizes: expected at most " + std::to_string(kMaxRank) +
                        " and as many strides, got " + std::to_string(sizes.size()));
    }
    Tensor out{view, owner};
    out.view.rank = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), out.view.sizes.begin());
    std::copy(strides.begin(), strides.end(), out.view.strides.begin());
    return out;
  }

  std::shared_ptr<Buffer> memory;
};

}  // namespace

void bind_placement(py::module_& m) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(m, "Buffer")
      .def(py::init(&buffer))
      .def_property_readonly("nbytes", &Buffer::bytes);
  py::class_<Copy, Tensor>(m, "Copy")
      .def(py::init<Device, const py::array&>())
      .def("upload", &Copy::upload)
      .def("download", &Copy::download)
      .def("walked", &Copy::walked);
}

}  // namespace scanrnn
