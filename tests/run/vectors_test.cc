// Elements as numbers and back, beside c10's own conversions.
#include "src/run/kernels/cpu/vectors.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "src/run/kernels/cpu/kernels.h"
#include "src/run/kernels/kernels.h"

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
  const at::Tensor bits = at::arange(-0x8000, 0x8000, at::kInt).to(at::kShort);
  const at::Tensor numbers = bits.view(kType).reshape({1, -1});
  for (const double added : {0.0, 1e-7, 3e-5, 0.37, 1000.0, 65504.0}) {
    const at::Tensor row = at::full({numbers.size(1)}, added, kType);
    const at::Tensor sum = numbers.clone();
    cpu_kernels().add_to_rows(sum, row, 1);
    const at::Tensor expected = (numbers.to(at::kFloat) + row.to(at::kFloat)).to(kType);
    EXPECT_TRUE(at::equal(sum.isnan(), expected.isnan())) << added;
    EXPECT_TRUE(at::equal(sum.nan_to_num(0, 9, -9), expected.nan_to_num(0, 9, -9))) << added;
    const at::Tensor flat = numbers.flatten().clone();
    cpu_kernels().add_numbers(flat, row.to(at::kFloat));
    EXPECT_TRUE(at::equal(flat.isnan(), sum[0].isnan())) << added;
    EXPECT_TRUE(at::equal(flat.nan_to_num(0, 9, -9), sum[0].nan_to_num(0, 9, -9))) << added;
  }
}

// Rows of no whole number of stretches, beside torch's operations in float32.
TYPED_TEST(VectorsTest, KernelsOfLongRows) {
  constexpr auto kType = c10::CppTypeToScalarType<TypeParam>::value;
  const double ulp = kType == at::kHalf ? 1e-3 : 8e-3;
  at::Generator generator = at::detail::createCPUGenerator(5);
  const auto draw = [&](std::int64_t rows, std::int64_t cols) {
    return at::randn({rows, cols}, generator, at::kFloat).mul_(3).to(kType);
  };
  const auto expect_near = [&](const at::Tensor& found, const at::Tensor& expected) {
    EXPECT_TRUE(at::allclose(found.to(at::kFloat), expected.to(at::kFloat), ulp, 1e-4));
  };
  for (const std::int64_t F : {1, 127, 129, 300}) {
    SCOPED_TRACE(F);
    const at::Tensor h = draw(3, 2 * F);
    const at::Tensor grad_a = draw(3, F);
    const at::Tensor a = at::empty({3, F}, kType);
    const at::Tensor grad_h = at::empty({3, 2 * F}, kType);
    cpu_kernels().swiglu(h, a);
    cpu_kernels().swiglu_adjoint(h, grad_a, grad_h);
    const at::Tensor gate = h.narrow(1, 0, F).to(at::kFloat);
    const at::Tensor up = h.narrow(1, F, F).to(at::kFloat);
    const at::Tensor da = grad_a.to(at::kFloat);
    const at::Tensor s = at::sigmoid(gate);
    expect_near(a, gate * s * up);
    expect_near(grad_h.narrow(1, 0, F), da * up * s * (1 + gate * (1 - s)));
    expect_near(grad_h.narrow(1, F, F), da * gate * s);

    // heads that are made numbers all at once, a few at a time, one by one, and element by element
    for (const auto& [heads, half] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, F}, {7, F}, {3, 4 * F}}) {
      const at::Tensor x = draw(2, 2 * heads * half + 5);
      const at::Tensor angles = draw(4, half).to(at::kFloat);
      const at::Tensor positions = at::tensor({3, 1}, at::kLong);
      const at::Tensor cosines = angles.cos();
      const at::Tensor sines = angles.sin();
      for (const bool inverse : {false, true}) {
        const at::Tensor turned = x.clone();
        cpu_kernels().rotate(
            turned.narrow(1, 0, 2 * heads * half),
            {.heads = heads,
             .head_dim = 2 * half,
             .cosines = cosines,
             .sines = sines,
             .positions = positions,
             .inverse = inverse});
        for (std::int64_t r = 0; r < 2; ++r) {
          const auto t = positions[r].item<std::int64_t>();
          const at::Tensor s_t = inverse ? -sines[t] : sines[t];
          for (std::int64_t head = 0; head < heads; ++head) {
            const auto halves = [&](const at::Tensor& of, std::int64_t which) {
              return of[r].narrow(0, (2 * head + which) * half, half).to(at::kFloat);
            };
            const at::Tensor low = halves(x, 0), high = halves(x, 1);
            expect_near(halves(turned, 0), low * cosines[t] - high * s_t);
            expect_near(halves(turned, 1), high * cosines[t] + low * s_t);
          }
        }
        EXPECT_TRUE(
            at::equal(turned.narrow(1, 2 * heads * half, 5), x.narrow(1, 2 * heads * half, 5)));
      }
    }

    std::vector<float> dots(3);
    const at::Tensor other = draw(3, F);
    dot_rows(kType, {grad_a.const_data_ptr(), F}, {other.const_data_ptr(), F}, 3, F, dots.data());
    const at::Tensor expected = (da * other.to(at::kFloat)).sum(1);
    EXPECT_TRUE(at::allclose(
        at::from_blob(dots.data(), {3}, at::kFloat), expected, 1e-5, 1e-4 * std::sqrt(F)));
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
