// The plan side as a Python module: each file binds what one header of the library has.
//
// Names and defaults are those of the command line's options; what makes a plan is the library's,
// the same that the commands call.  Exceptions are the library's: std::invalid_argument becomes
// ValueError.  Whatever takes long runs without the GIL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/operators.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "paradyse/plan/dtype.h"

namespace paradyse::python {

namespace nb = nanobind;
using namespace nb::literals;

// Objects may be compared with whatever there is, as Python's own are.
inline const nb::sig kEquals("def __eq__(self, other: object, /) -> bool");

using WithoutGil = nb::call_guard<nb::gil_scoped_release>;

void bind_model(nb::module_& module);     // Model, Cluster, Costs
void bind_plan(nb::module_& module);      // Plan and what it is made of, check
void bind_batch(nb::module_& module);     // plan_batch, bound
void bind_costs(nb::module_& module);     // plan_document, plan_step
void bind_layers(nb::module_& module);    // plan_layers
void bind_layout(nb::module_& module);    // plan_layout
void bind_simulate(nb::module_& module);  // simulate

// Many numbers: a NumPy array that owns them and that nobody writes.
template <typename Number>
using Array = nb::ndarray<nb::numpy, const Number, nb::ndim<1>, nb::c_contig>;

template <typename Number>
Array<Number> array_of(std::vector<Number> numbers) {
  auto* const kept = new std::vector<Number>(std::move(numbers));
  const nb::capsule owner(
      kept, [](void* owned) noexcept { delete static_cast<std::vector<Number>*>(owned); });
  return Array<Number>(kept->data(), {kept->size()}, owner);
}

// How properties return such arrays.
inline constexpr auto kOwned = nb::rv_policy::automatic;

// Bytes, or a text as in "40GiB".
using Memory = std::variant<std::int64_t, std::string>;
// Throws std::invalid_argument for what is no amount of memory, or less than a byte.
std::int64_t bytes_of(const Memory& memory);

// Throws std::invalid_argument for a type that predictions do not know.
Dtype half_or_single(const std::string& dtype);

}  // namespace paradyse::python
