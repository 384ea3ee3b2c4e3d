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
#include "src/run/weights/normal.h"
#include "tests/support/models.h"

namespace paradyse {
namespace {

// Six million numbers, of which half a dozen are so close to the middle between two floats that
// only torch's own cosine can tell which it is.
TEST(DrawNormal, IsPhiloxOfTorchBitByBit) {
  std::mt19937_64 random(5);
  for (const std::size_t count : {0, 1, 255, 256, 257, 1000003, 1 << 20}) {
    for (const std::uint64_t first :
         {std::uint64_t{0}, (std::uint64_t{1} << 32) - 77, random() >> 1}) {
      const std::uint64_t seed = random();
      const std::uint64_t stream = random();
      std::vector<float> drawn(count, -99);
      draw_normal(seed, stream, first, drawn);
      at::Philox4_32 plain(seed, stream, first);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(
            std::bit_cast<std::uint32_t>(drawn[i]), std::bit_cast<std::uint32_t>(plain.randn(10)))
            << "number " << i << " from " << first << " of stream " << stream << ", seed " << seed;
      }
    }
  }
}

std::string drawn(const Model& model, Dtype dtype, bool masters, int domain, int rank) {
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
  EXPECT_EQ(drawn(model, Dtype::float32, true, 1, 0), "");
  EXPECT_EQ(drawn(model, Dtype::float64, true, 1, 0), "");
  EXPECT_EQ(drawn(model, Dtype::bfloat16, true, 3, 1), "");
  EXPECT_EQ(drawn(model, Dtype::float16, false, 2, 1), "");
}

}  // namespace
}  // namespace paradyse
