// paradyse profile: measures what parts of a model take on this machine.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/weights.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/cli/run_options.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/shell_word.h"
#include "src/plan/profile/fit.h"
#include "src/plan/profile/run_costs.h"
#include "src/run/device/device.h"
#include "src/run/measure/profiler.h"
#include "src/run/train/measured_costs.h"
#include "src/run/train/run_inputs.h"

namespace paradyse::cli {
namespace {

struct ProfileOptions {
  RunOptions run;
  std::string out;
  std::vector<std::int64_t> lengths;
  double seconds = 0;
};

// How long documents get: what the run says, its longest document, or what the model takes.
std::int64_t longest_of(const RunConfig& config, const ModelFolder& folder) {
  if (config.data.max_tokens > 0) {
    return config.data.max_tokens;
  }
  if (!config.data.path.empty()) {
    return data_at("data.path", config.data.path, config, folder).longest();
  }
  const Model& model = folder.model;
  const std::int64_t limit = model.limits.longest.tokens;
  const std::int64_t trained = model.limits.trained_positions;
  const std::int64_t longest =
      limit > 0 && trained > 0 ? std::min(limit, trained) : std::max(limit, trained);
  if (longest == 0) {
    throw std::invalid_argument(
        "profile: the longest document is not known: give --data, or --lengths");
  }
  return longest;
}

std::vector<std::int64_t> lengths_of(
    const ProfileOptions& options, const RunConfig& config, const ModelFolder& folder) {
  const Model& model = folder.model;
  std::vector<std::int64_t> lengths = options.lengths;
  if (lengths.empty()) {
    lengths = profile_lengths(longest_of(config, folder));
  }
  std::sort(lengths.begin(), lengths.end());
  const LengthLimit& limit = model.limits.longest;
  for (const std::int64_t n : lengths) {
    if (!limit.allows(n)) {
      throw std::invalid_argument(fmt::format("profile: a length of {} tokens; {}", n, limit.why));
    }
  }
  return lengths;
}

// Of a video or protein model.
BatchSizes samples_of(
    const ProfileOptions& options, const RunConfig& config, const ModelFolder& model) {
  if (!options.lengths.empty()) {
    throw std::invalid_argument(
        "profile: --lengths is for language models; for a model of type " + model.model.family +
        ", the largest sample of data.path, half of it and a quarter of it are profiled");
  }
  return data_at("data.path", config.data.path, config, model).sample_sizes();
}

std::size_t count(const Profile& profile, Outcome outcome) {
  return idx(std::count_if(profile.steps.begin(), profile.steps.end(), [&](const StepProbe& step) {
    return step.outcome == outcome;
  }));
}

// Steps that are each measured in several rounds, with another verb of the MLP in each.
std::size_t different(const Profile& profile, Outcome outcome) {
  std::set<StepKey> steps;
  for (const StepProbe& step : profile.steps) {
    if (step.outcome == outcome) {
      steps.insert(step_key(step));
    }
  }
  return steps.size();
}

bool rounds_are_missing(const Profile& profile, const ProfileRequest& request) {
  std::vector<std::int64_t> lengths = request.lengths;
  for (const DimSizes& dims : request.sizes) {
    lengths.push_back(request.model.rows(dims));
  }
  std::map<StepKey, int> rounds;
  for (const StepProbe& step : profile.steps) {
    if (!std::binary_search(lengths.begin(), lengths.end(), step.length)) {
      continue;  // of an earlier profile
    }
    // more time would not help what lacks memory
    rounds[step_key(step)] += step.outcome == Outcome::measured ? 1 : kProfileRounds;
  }
  return std::any_of(
      rounds.begin(), rounds.end(), [](const auto& step) { return step.second < kProfileRounds; });
}

int profile_on(
    const std::shared_ptr<Backend>& backend,
    const RunConfig& config,
    const ProfileOptions& options,
    const Common& common) {
  if (config.model.path.empty()) {
    throw std::invalid_argument("model.path is not set: set it in the run file, or give --model");
  }
  const ModelFolder model = model_at(config);
  if (backend->leads()) {
    say_measured(model);
  }
  const BatchSizes samples =
      model.model.of_samples() ? samples_of(options, config, model) : BatchSizes();
  ProfileRequest request = profile_request(config, model, 64, samples, *backend);
  if (model.model.of_samples() && request.sizes.size() < 3) {
    throw std::invalid_argument(
        "profile: data.path: the largest sample is too small: a quarter, a half and all of it must "
        "be three sizes; give a larger one");
  }
  if (!model.model.of_samples()) {
    request.lengths = lengths_of(options, config, model);
  }
  request.seconds = options.seconds > 0 ? options.seconds : config.costs.profile_seconds;
  expect_same_on_ranks(
      {{"the configuration of model.path", model.model.sha256},
       {"--lengths", fmt::format("{}", fmt::join(request.lengths, ","))},
       {"--seconds", fmt::format("{}", request.seconds)}},
      request.ranks,
      *backend);
  const ProfileHeader header = profile_header(request);
  request.file =
      options.out.empty() ? profile_file(config, header) : std::filesystem::path(options.out);
  std::error_code error;
  if (request.file.has_parent_path()) {
    std::filesystem::create_directories(request.file.parent_path(), error);
  }
  Progress progress;
  if (!common.json) {
    request.progress = [&](const ProfileProgress& now) { progress.show(now); };
  }
  const Profile rounds = profile(request);
  const Profile result = pooled(rounds);
  progress.finish();
  if (!backend->leads()) {
    return kOk;
  }
  const std::size_t measured = different(rounds, Outcome::measured);
  const std::size_t without_time = different(rounds, Outcome::time);
  const bool complete = without_time == 0 && !rounds_are_missing(rounds, request);
  const std::string go_on =
      complete ? "it is complete" : "the same command continues it (--seconds gives it more time)";
  if (common.json) {
    print_json(
        {{"file", request.file.string()},
         {"machine", header.machine},
         {"steps_measured", measured},
         {"measured_steps_of_all_rounds", count(rounds, Outcome::measured)},
         {"rounds", kProfileRounds},
         {"steps_without_memory", different(rounds, Outcome::memory)},
         {"steps_without_time", without_time},
         {"parts", result.parts.size()},
         {"collectives", result.collectives.size()},
         {"kernels", result.kernels.size()}});
  } else if (const std::string lacks = lacks_for_a_fit(rounds); !lacks.empty()) {
    fmt::print(
        "{}\n{} steps measured; {} would not fit into memory, {} did not fit into the time\n{}: "
        "{}\n",
        verdict("not enough for a fit: " + lacks, false),
        measured,
        different(rounds, Outcome::memory),
        without_time,
        request.file.string(),
        complete ? fmt::format(
                       "it is complete: measure {}, or with more memory",
                       request.sizes.empty() ? "other --lengths" : "samples of more sizes")
                 : "run the same command again; it continues (--seconds gives it more time)");
  } else {
    fmt::print(
        "{} steps measured ({} of {} times); {} would not fit into memory, {} did not fit "
        "into\nthe time\n{}: {}\nnext: paradyse fit --profile {}{}\n",
        measured,
        count(rounds, Outcome::measured),
        kProfileRounds * measured,
        different(rounds, Outcome::memory),
        without_time,
        request.file.string(),
        go_on,
        shell_word(request.file.string()),
        options.out.empty() ? "" : (" --out " + costs_file(config, header).string()));
  }
  return kOk;
}

int run_profile(const ProfileOptions& options, const Common& common) {
  const LoadedConfig loaded = load(options.run);
  if (options.run.print_config) {
    print_config(loaded, common);
    return kOk;
  }
  if (options.out.empty()) {
    const std::filesystem::path folder = loaded.config.output.folder;
    expect_writable("output.folder", (folder / "costs" / "profile").string(), true);
  }
  return on_backend(
      backend_options(loaded.config, options.run),
      given_by(loaded),
      [&](const std::shared_ptr<Backend>& backend) {
        return profile_on(backend, with_budget(loaded.config, *backend), options, common);
      });
}

}  // namespace

void add_profile(CLI::App& app, Common& common) {
  auto [command, options] = add_command<ProfileOptions>(
      app,
      common,
      "profile",
      "Measure the time of every strategy on this machine, for paradyse fit",
      run_profile);
  add_run_options(*command, options->run);
  command
      ->add_option(
          "--out",
          options->out,
          "File that measurements are added to (default: in output.folder's costs/)")
      ->check(writable_file(/*makes_folders=*/true));
  command
      ->add_option(
          "--lengths",
          options->lengths,
          "Document lengths in tokens (default: powers of two up to the longest)")
      ->delimiter(',')
      ->transform(whole_numbers(1));
  command->add_option("--seconds", options->seconds, "Short for --set costs.profile_seconds=...")
      ->check(seconds());
}

}  // namespace paradyse::cli
