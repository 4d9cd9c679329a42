// Checked views of NumPy arrays: each requirement is stated once, and arrays are never cast or copied
// silently.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ops/attention/cache_plane.h"

namespace ballast {

// One dimension of an expected shape: a size, or any size, and its name for messages.
struct Dim {
  static constexpr int64_t kAny = -1;
  const char* name;
  int64_t size = kAny;
};

inline std::string describe(const pybind11::array& array) {
  std::string text = pybind11::str(array.dtype()).cast<std::string>() + " [";
  for (pybind11::ssize_t i = 0; i < array.ndim(); ++i)
    text += (i ? ", " : "") + std::to_string(array.shape(i));
  text += "]";
  const int flags = array.flags();
  if ((flags & pybind11::array::c_style) == 0) text += ", not C-contiguous";
  if ((flags & pybind11::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0) text += ", not aligned";
  return text;
}

inline std::string describe(const char* dtype, const std::vector<Dim>& dims) {
  std::string text = std::string(dtype) + " [";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += (i ? ", " : "") + std::string(dims[i].name);
    if (dims[i].size != Dim::kAny) text += " = " + std::to_string(dims[i].size);
  }
  return text + "], C-contiguous and aligned";
}

inline bool has_form(const pybind11::array& array, const std::vector<Dim>& dims) {
  constexpr int kWanted = pybind11::array::c_style | pybind11::detail::npy_api::NPY_ARRAY_ALIGNED_;
  bool fits =
      (array.flags() & kWanted) == kWanted && array.ndim() == static_cast<pybind11::ssize_t>(dims.size());
  for (size_t i = 0; fits && i < dims.size(); ++i) {
    fits = dims[i].size == Dim::kAny || array.shape(static_cast<pybind11::ssize_t>(i)) == dims[i].size;
  }
  return fits;
}

// Throws ValueError with the argument, its actual and its expected form.
template <class T>
void check_array(const char* name, const pybind11::array& array, const std::vector<Dim>& dims) {
  if (pybind11::isinstance<pybind11::array_t<T>>(array) && has_form(array, dims)) return;
  const std::string dtype = pybind11::str(pybind11::dtype::of<T>()).template cast<std::string>();
  throw pybind11::value_error(std::string(name) + " is " + describe(array) + "; expected " +
                              describe(dtype.c_str(), dims));
}

template <class T>
const T* read(const char* name, const pybind11::array& array, const std::vector<Dim>& dims) {
  check_array<T>(name, array, dims);
  return static_cast<const T*>(array.data());
}

inline void check_writable(const char* name, const pybind11::array& array) {
  if (!array.writeable())
    throw pybind11::value_error(std::string(name) + " is read-only; expected a writable array");
}

template <class T>
T* write(const char* name, pybind11::array& array, const std::vector<Dim>& dims) {
  check_array<T>(name, array, dims);
  check_writable(name, array);
  return static_cast<T*>(array.mutable_data());
}

inline bool is_half(const pybind11::array& array) {
  return array.dtype().kind() == 'f' && array.dtype().itemsize() == 2;
}

// A plane of the cache: float32 or float16.
inline CachePlane read_plane(const char* name, const pybind11::array& array, const std::vector<Dim>& dims) {
  if (!is_half(array)) {
    check_array<float>(name, array, dims);
  } else if (!has_form(array, dims)) {
    throw pybind11::value_error(std::string(name) + " is " + describe(array) + "; expected " +
                                describe("float16", dims));
  }
  return {static_cast<uint8_t*>(const_cast<void*>(array.data())), is_half(array)};
}

inline CachePlane write_plane(const char* name, const pybind11::array& array, const std::vector<Dim>& dims) {
  const CachePlane plane = read_plane(name, array, dims);
  check_writable(name, array);
  return plane;
}

// For operations that still read their input while they write.
inline void check_disjoint(const char* name, const pybind11::array& out, const char* input_name,
                           const pybind11::array& input) {
  const auto begin = [](const pybind11::array& array) { return static_cast<const char*>(array.data()); };
  if (begin(out) < begin(input) + input.nbytes() && begin(input) < begin(out) + out.nbytes()) {
    throw pybind11::value_error(std::string(name) + " shares memory with " + input_name +
                                "; expected its own");
  }
}

}  // namespace ballast
