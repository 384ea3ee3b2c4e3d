// Types of numbers that a model is trained in, by PyTorch's names.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace paradyse {

enum class Dtype { float32, float64, bfloat16, float16 };

inline constexpr std::array kDtypes = {
    Dtype::float32, Dtype::float64, Dtype::bfloat16, Dtype::float16};

// Sums are made in a wider type, and masters are beside the weights.
constexpr bool narrow(Dtype dtype) { return dtype == Dtype::bfloat16 || dtype == Dtype::float16; }

const char* to_string(Dtype dtype);
// Throws std::invalid_argument, naming those there are, for another name.
Dtype dtype_named(std::string_view name);
std::vector<std::string> dtype_names();

}  // namespace paradyse
