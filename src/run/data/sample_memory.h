// Whether samples fit into the machine's memory, said before it is taken.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "paradyse/plan/model.h"

namespace paradyse {

// Of a number of a sample's input that ranks cut, each holding its share in float32.
inline constexpr double kCutInputBytes = 4;

// What was rounded down from a whole number is that number.
inline double whole_of(double number) { return std::floor(number + 1e-6); }

// Throws std::runtime_error: that `what` takes `needed` bytes, and `available` are there.  Bytes
// are doubles, since sizes that nobody has memory for overflow integers.
[[noreturn]] void refuse_sample(
    const std::string& what, double needed, std::int64_t available, const std::string& remedy);

// Throws so where samples with these sizes of dims, `count` at once, take more than `available`.
void expect_room(
    const Model& model,
    const std::map<std::string, std::int64_t>& dims,
    std::int64_t count,
    std::int64_t available);

}  // namespace paradyse
