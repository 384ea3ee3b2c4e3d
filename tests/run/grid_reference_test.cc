// The references of models of several dims against plain PyTorch (tests/golden/README.md), and how
// much memory they take.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/run/gradients.h"
#include "paradyse/run/weights.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/reference/naive_memory.h"
#include "src/run/reference/reference.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/grid_shapes.h"

namespace paradyse {
namespace {

constexpr double kNear = 1e-12;

reference::Weights tensors_of(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);
  reference::Weights all;
  for (const auto& [name, stored] : reader.tensors()) {
    all[name] = reader.view(name).clone();
  }
  return all;
}

// "0.patches" is the "patches" of sample 0.
std::vector<Sample> samples_of(const std::filesystem::path& path) {
  std::vector<Sample> samples;
  for (const auto& [name, tensor] : tensors_of(path)) {
    const std::size_t dot = name.find('.');
    const std::size_t number = std::stoul(name.substr(0, dot));
    samples.resize(std::max(samples.size(), number + 1));
    if (name.substr(dot + 1) == "labels") {
      for (std::int64_t i = 0; i < tensor.numel(); ++i) {
        samples[number].labels.push_back(tensor[i].item<std::int32_t>());
      }
    } else {
      samples[number].inputs[name.substr(dot + 1)] = tensor;
    }
  }
  return samples;
}

class GridReference : public testing::TestWithParam<const char*> {};

TEST_P(GridReference, SaysWhatPyTorchSays) {
  const auto folder = std::filesystem::path(PARADYSE_SOURCE_DIR) / "tests" / "golden" / GetParam();
  const Model shape = open_model(folder).model;
  const std::vector<Sample> samples = samples_of(folder / "samples.safetensors");
  std::ifstream file(folder / "expected.json");
  const auto expected = nlohmann::json::parse(file);
  const reference::Answer answer = reference::answer(
      shape, tensors_of(folder / "model.safetensors"), {.items = items_of(samples)});
  const double loss = expected.at("loss");
  EXPECT_NEAR(answer.loss, loss, kNear * loss);
  std::int64_t scored = 0;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const double sum = expected.at("sums").at(s);
    EXPECT_NEAR(answer.documents.at(s).sum, sum, kNear * sum);
    scored += answer.documents[s].count;
  }
  EXPECT_EQ(scored, expected.at("scored").get<std::int64_t>());
  const GradientError error =
      compare_gradients(answer.gradients, tensors_of(folder / "expected_gradients.safetensors"));
  EXPECT_LE(error.worst, kNear) << error.worst_name;
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    GridReference,
    testing::Values(
        "grid_stdit",
        "grid_stdit_text",
        "grid_stdit3",
        "grid_evoformer",
        "grid_multimer",
        "grid_extra_msa",
        "grid_openfold",
        "grid_openfold_extra",
        "grid_openfold_masked",
        "grid_openfold_letters"),
    [](const auto& of) { return std::string(of.param); });

// Without data the same tensors are made; but torch adds gradients that meet in place only where
// there is some, and kernels take a little while they work.
TEST(NaiveMemory, IsCountedAsItIsMeasured) {
  struct Subject {
    Model shape;
    std::map<std::string, std::int64_t> dims;
  };
  for (const auto& [shape, dims] : std::vector<Subject>{
           {test::with_text(test::small_stdit(2)), {{"frames", 16}, {"patches", 40}, {"text", 7}}},
           {test::small_evoformer(2),
            {{"sequences", 32}, {"residues", 64}, {"i", 64}, {"j", 64}}}}) {
    const Model model = shape;
    reference::Weights weights;
    reference::Weights without_data;
    for (const auto& [name, sizes] : parameter_shapes(model)) {
      weights[name] = at::full(sizes, 0.01, at::kDouble);
      without_data[name] =
          at::empty(sizes, at::TensorOptions().dtype(at::kDouble).device(at::kMeta));
    }
    const std::vector<Sample> samples = synthetic_samples(model, dims, 1);
    const auto counted = static_cast<double>(reference::counted_peak(
        [&] { (void)reference::answer(shape, without_data, {.items = items_of(samples)}); }));
    const auto measured = static_cast<double>(reference::measured([&] {
                                                return reference::answer(
                                                    shape, weights, {.items = items_of(samples)});
                                              }).peak_bytes);
    EXPECT_GT(measured, 1 << 20);
    EXPECT_GE(counted, 0.98 * measured);
    EXPECT_LE(counted, 1.2 * measured);
  }
}

}  // namespace
}  // namespace paradyse
