// Weights that begin as random numbers: which ones, for good.
#include "paradyse/run/weights.h"

#include <bit>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/PhiloxRNGEngine.h>
#include <gtest/gtest.h>

#include "paradyse/plan/model.h"
#include "src/plan/base/sha256.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/weights/normal.h"
#include "tests/support/models.h"

namespace paradyse {
namespace {

void expect_torch(
    std::uint64_t seed, std::uint64_t stream, std::uint64_t first, std::size_t count) {
  std::vector<float> drawn(count, -99);
  draw_normal(seed, stream, first, drawn);
  at::Philox4_32 plain(seed, stream, first);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(drawn[i]), std::bit_cast<std::uint32_t>(plain.randn(10)))
        << "number " << i << " from " << first << " of stream " << stream << ", seed " << seed;
  }
}

// Six million numbers of seeds, streams and beginnings of all kinds.
TEST(DrawNormal, IsPhiloxOfTorchBitByBit) {
  std::mt19937_64 random(5);
  for (const std::size_t count : std::vector<std::size_t>{0, 1, 255, 256, 257, 1000003, 1 << 20}) {
    for (const std::uint64_t first :
         {std::uint64_t{0}, (std::uint64_t{1} << 32) - 77, random() >> 1}) {
      expect_torch(random(), random(), first, count);
    }
  }
}

// So close to the middle between two floats that only torch's own cosine can tell which it is:
// without kMargin both are wrong.
TEST(DrawNormal, KnowsWhereItIsNotSure) {
  expect_torch(8, 1, 2526983, 1);
  expect_torch(8, 1, 4297117220, 1);
}

std::string drawn(const Model& model, Dtype dtype, Masters masters, int domain, int rank) {
  Parameters parameters(model, domain, rank, parameter_types(dtype), false, masters);
  parameters.initialize(42);
  std::string bytes;
  for (const PartParameters& part : parameters.parts()) {
    for (const at::Tensor& tensor : {part.stack, part.stack_master}) {
      if (tensor.defined()) {
        bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
      }
    }
  }
  return sha256_hex(bytes);
}

// A matrix of this model takes several pieces of the drawing threads, and they end inside rows.
TEST(Parameters, BeginWithTheNumbersOfAlways) {
  const Model model = text_model(test::llama({.hidden = 301, .ffn = 300, .vocab = 701}));
  EXPECT_EQ(
      drawn(model, Dtype::float32, Masters::on_device, 1, 0),
      "a49a02a9de24b41a82656149f164861c761310815b3076346303977f948c2540");
  EXPECT_EQ(
      drawn(model, Dtype::float64, Masters::on_device, 1, 0),
      "0f6dbdaf79f98f8cb5b16335d8d28714fcb76f36597654c7d50f6bf4ec2cbd0a");
  EXPECT_EQ(
      drawn(model, Dtype::bfloat16, Masters::on_device, 3, 1),
      "1f917a37d53fe6bad98cc89d89371ef1abc093912fad56d1d4851745f8e87d8f");
  EXPECT_EQ(
      drawn(model, Dtype::float16, Masters::none, 2, 1),
      "30180b8eba610f89c1d842c3b741ce1d1b2c9195a19bbb508a391f4459fbd981");
}

}  // namespace
}  // namespace paradyse
