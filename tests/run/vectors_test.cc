// Elements as numbers and back, beside c10's own conversions.
#include "src/run/kernels/cpu/vectors.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "src/run/kernels/cpu/kernels.h"

namespace paradyse::kernels {
namespace {

template <typename T>
class VectorsTest : public testing::Test {};
using Narrow = testing::Types<at::BFloat16, at::Half>;
TYPED_TEST_SUITE(VectorsTest, Narrow);

TYPED_TEST(VectorsTest, EveryElementIsItsNumberAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const TypeParam element(static_cast<std::uint16_t>(bits), TypeParam::from_bits());
    const float number = wide(element);
    const auto expected = static_cast<float>(element);
    TypeParam back;
    put(back, number);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(number)) << bits;
      EXPECT_TRUE(std::isnan(static_cast<float>(back))) << bits;
    } else {
      EXPECT_EQ(number, expected) << bits;
      EXPECT_EQ(back.x, element.x) << bits;
    }
  }
}

TYPED_TEST(VectorsTest, NumbersAreRoundedToTheNearest) {
  for (std::uint64_t bits = 0; bits < 0x100000000; bits += 4093) {  // no power of two: all endings
    const auto number = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    TypeParam rounded;
    put(rounded, number);
    const TypeParam expected(number);
    if (std::isnan(number)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(rounded))) << bits;
    } else {
      EXPECT_EQ(rounded.x, expected.x) << number;
    }
  }
}

TYPED_TEST(VectorsTest, OfTwoNearestTheEvenOneIsTaken) {
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {  // finite numbers of both types
    const TypeParam below(static_cast<std::uint16_t>(bits), TypeParam::from_bits());
    const TypeParam above(static_cast<std::uint16_t>(bits + 1), TypeParam::from_bits());
    const float middle = wide(below) / 2 + wide(above) / 2;
    TypeParam rounded;
    put(rounded, middle);
    if (std::isnormal(middle)) {
      EXPECT_EQ(rounded.x, (bits & 1) == 0 ? below.x : above.x) << bits;
    }
  }
}

// In the kernels, whose arithmetic the compiler may rearrange.
TYPED_TEST(VectorsTest, KernelsRoundAsTorchDoes) {
  constexpr auto kType = c10::CppTypeToScalarType<TypeParam>::value;
  const at::Tensor bits = at::arange(0x8000, at::kInt).to(at::kShort);
  const at::Tensor numbers = bits.view(kType).reshape({1, -1});
  for (const double added : {0.0, 1e-7, 3e-5, 0.37, 1000.0, 65504.0}) {
    const at::Tensor row = at::full({numbers.size(1)}, added, kType);
    const at::Tensor sum = numbers.clone();
    add_to_rows(sum, row);
    const at::Tensor expected = (numbers.to(at::kFloat) + row.to(at::kFloat)).to(kType);
    EXPECT_TRUE(at::equal(sum.isnan(), expected.isnan())) << added;
    EXPECT_TRUE(at::equal(sum.nan_to_num(0, 9, -9), expected.nan_to_num(0, 9, -9))) << added;
  }
}

TEST(Vectors, OtherTypesAreWhatTheyAre) {
  double element = 0;
  put(element, 1.0 / 3);
  EXPECT_EQ(wide(element), 1.0 / 3);
  EXPECT_EQ(wide(std::int64_t{1} << 60), std::int64_t{1} << 60);
}

}  // namespace
}  // namespace paradyse::kernels
