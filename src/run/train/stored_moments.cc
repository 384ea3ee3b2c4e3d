#include "src/run/train/stored_moments.h"

#include <charconv>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "src/plan/base/text_match.h"
#include "src/run/train/checkpoint_pieces.h"

namespace paradyse {
namespace {

// What a file says of itself.  Throws std::runtime_error.
std::int64_t steps_of_moments(const SafetensorsReader& reader) {
  const std::map<std::string, std::string>& said = reader.metadata();
  const std::string file = reader.files().front().string();
  const auto optimizer = said.find("optimizer");
  if (optimizer == said.end() || optimizer->second != "AdamW") {
    throw std::runtime_error(fmt::format(
        "{}: {}, but moments of AdamW are needed: python -m paradyse.torch.dcp from --optimizer "
        "writes them",
        file,
        optimizer == said.end() ? "does not say which optimizer it is of"
                                : "is of the optimizer " + excerpt(optimizer->second)));
  }
  const auto text = said.find("steps");
  std::int64_t steps = -1;
  if (text != said.end()) {
    const char* const end = text->second.data() + text->second.size();
    const auto [rest, error] = std::from_chars(text->second.data(), end, steps);
    steps = error == std::errc() && rest == end ? steps : -1;
  }
  if (steps < 1) {
    throw std::runtime_error(
        file + ": does not say of how many steps (1 or more) its moments are; write it anew");
  }
  return steps;
}

std::shared_ptr<const SafetensorsReader> moments_in(
    const std::filesystem::path& folder, const Model& model) {
  auto reader = std::make_shared<const SafetensorsReader>(folder);
  static_cast<void>(stored_weights(*reader, model));  // throws where a name or a shape is another
  return reader;
}

}  // namespace

StoredMoments open_moments(const std::filesystem::path& folder, const Model& model) {
  StoredMoments moments{
      .mean = moments_in(folder / "exp_avg", model),
      .variance = moments_in(folder / "exp_avg_sq", model)};
  moments.steps = steps_of_moments(*moments.mean);
  const std::int64_t others = steps_of_moments(*moments.variance);
  if (others != moments.steps) {
    throw std::runtime_error(fmt::format(
        "{}: exp_avg is of {} steps, but exp_avg_sq of {}: they belong to different states; write "
        "them anew",
        folder.string(),
        moments.steps,
        others));
  }
  return moments;
}

void StoredMoments::fill(Parameters& parameters, AdamW& optimizer) const {
  const c10::InferenceMode no_autograd;
  for (const auto& [reader, moment] :
       {std::pair(mean, &TrainedPiece::mean), std::pair(variance, &TrainedPiece::variance)}) {
    parameters.load(*reader);  // which cuts it as it cuts weights
    for (const TrainedPiece& one : trained_pieces(parameters, optimizer)) {
      (one.*moment).copy_(one.master);
    }
  }
  optimizer.set_steps(steps);
}

}  // namespace paradyse
