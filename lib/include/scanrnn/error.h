// SPDX-License-Identifier: Apache-2.0
// What the library throws. Argument errors come before any work starts and leave outputs untouched.
#pragma once

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)  // exported from the library
namespace scanrnn {

// Base of everything thrown on purpose. what() names the argument, what came and what was wanted.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value that cannot be used: a shape, a size, an option, a strategy that does not fit.
class value_error : public error {
 public:
  using error::error;
};

// A dtype or device that differs from what was wanted.
class type_error : public error {
 public:
  using error::error;
};

// A CUDA or cuBLAS call that failed, with the call and the device; or CUDA asked for where there
// is none.
class cuda_error : public error {
 public:
  using error::error;
};

}  // namespace scanrnn
#pragma GCC visibility pop
