// The profile as a file of JSON lines: docs/internals/costs.md.
#include "paradyse/plan/profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/median.h"
#include "src/plan/base/text_match.h"
#include "src/plan/profile/header_json.h"

namespace paradyse {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kProfileFormat = "paradyse-profile";
constexpr std::int64_t kProfileVersion = 2;
constexpr std::array<const char*, 3> kOutcomeNames = {"measured", "memory", "time"};

// --- writing -------------------------------------------------------------------------------------

double from_0(double value, const char* what) {
  if (!(value >= 0 && value <= kMostNumber)) {
    throw std::invalid_argument(fmt::format(
        "a probe's {} is {}: a profile holds numbers from 0 to {}; leave the probe out",
        what,
        value,
        kMostNumber));
  }
  return value;
}

Json json_of(const Spread& spread) {
  return {
      {"median", from_0(spread.median, "median")},
      {"least", from_0(spread.least, "least value")},
      {"most", from_0(spread.most, "greatest value")}};
}

Json json_of(const Amounts& amounts) {
  Json json = Json::object();
  for (std::size_t i = 0; i < Amounts::kCount; ++i) {
    json[Amounts::kNames[i]] = from_0(amounts.values[i], Amounts::kNames[i]);
  }
  return json;
}

std::string name_of(Outcome outcome) { return kOutcomeNames[idx(outcome)]; }

Json json_of(const PartProbe& probe) {
  Json json = {
      {"probe", "part"},
      {"part", probe.part},
      {"strategy", probe.strategy},
      {"recompute", probe.recompute},
      {"ranks", probe.ranks},
      {"length", probe.length},
      {"reshard_after_backward", probe.reshard_after_backward},
      {"outcome", name_of(probe.outcome)}};
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    json["seconds"][kPhaseNames[i]] = json_of(probe.seconds[i]);
    json["work"][kPhaseNames[i]] = json_of(probe.work.phases[i]);
    if (probe.processor_seconds) {
      json["processor_seconds"][kPhaseNames[i]] =
          from_0((*probe.processor_seconds)[i], "processor seconds");
    }
  }
  return json;
}

Json json_of(const StepProbe& probe) {
  return {
      {"probe", "step"},
      {"attention", probe.attention},
      {"mlp", probe.mlp},
      {"recompute", probe.recompute},
      {"ranks", probe.ranks},
      {"length", probe.length},
      {"reshard_after_backward", probe.reshard_after_backward},
      {"outcome", name_of(probe.outcome)},
      {"seconds", json_of(probe.seconds)},
      {"counted_saved_bytes", probe.counted_saved_bytes},
      {"saved_bytes", probe.saved_bytes},
      {"counted_peak_bytes", probe.counted_peak_bytes},
      {"peak_bytes", probe.peak_bytes}};
}

Json json_of(const CollectiveProbe& probe) {
  return {
      {"probe", "collective"},
      {"collective", probe.collective},
      {"ranks", probe.ranks},
      {"bytes", probe.bytes},
      {"seconds", json_of(probe.seconds)}};
}

Json json_of(const KernelProbe& probe) {
  return {
      {"probe", "kernel"},
      {"kernel", probe.kernel},
      {"shape", probe.shape},
      {"flops", from_0(probe.flops, "flops")},
      {"seconds", json_of(probe.seconds)}};
}

std::string line_of(const Json& json) { return json_line(json) + "\n"; }

std::string first_line(const ProfileHeader& header) {
  Json json = {{"format", kProfileFormat}, {"version", kProfileVersion}};
  json.update(json_of(header));
  return line_of(json);
}

// --- reading -------------------------------------------------------------------------------------

Spread spread_from(const JsonNode& node) {
  node.allow({"median", "least", "most"});
  return {
      .median = node.at("median").number_from_0(),
      .least = node.at("least").number_from_0(),
      .most = node.at("most").number_from_0()};
}

Amounts amounts_from(const JsonNode& node) {
  node.allow({Amounts::kNames.begin(), Amounts::kNames.end()});
  Amounts amounts;
  for (std::size_t i = 0; i < Amounts::kCount; ++i) {
    amounts.values[i] = node.at(Amounts::kNames[i]).number_from_0();
  }
  return amounts;
}

Outcome outcome_from(const JsonNode& node) {
  const std::string text = node.text();
  for (std::size_t i = 0; i < kOutcomeNames.size(); ++i) {
    if (text == kOutcomeNames[i]) {
      return static_cast<Outcome>(i);
    }
  }
  const std::vector<std::string> known(kOutcomeNames.begin(), kOutcomeNames.end());
  node.fail(
      "'" + text + "' is not an outcome" + did_you_mean(text, known) +
      "; there are measured, memory, time");
}

PartProbe part_from(const JsonNode& node) {
  node.allow(
      {"probe",
       "part",
       "strategy",
       "recompute",
       "ranks",
       "length",
       "reshard_after_backward",
       "outcome",
       "seconds",
       "work",
       "processor_seconds"});
  PartProbe probe{
      .part = node.at("part").text(),
      .strategy = node.at("strategy").text(),
      .recompute = node.at("recompute").text(),
      .ranks = node.at("ranks").integer<int>(1),
      .length = node.at("length").integer<std::int64_t>(0),
      .reshard_after_backward = node.at("reshard_after_backward").truth(),
      .outcome = outcome_from(node.at("outcome"))};
  const JsonNode seconds = node.at("seconds");
  const JsonNode work = node.at("work");
  seconds.allow({kPhaseNames.begin(), kPhaseNames.end()});
  work.allow({kPhaseNames.begin(), kPhaseNames.end()});
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    probe.seconds[i] = spread_from(seconds.at(kPhaseNames[i]));
    probe.work.phases[i] = amounts_from(work.at(kPhaseNames[i]));
  }
  if (node.has("processor_seconds")) {
    const JsonNode processor = node.at("processor_seconds");
    processor.allow({kPhaseNames.begin(), kPhaseNames.end()});
    auto& its = probe.processor_seconds.emplace();
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      its[i] = processor.at(kPhaseNames[i]).number_from_0();
    }
  }
  return probe;
}

StepProbe step_from(const JsonNode& node) {
  node.allow(
      {"probe",
       "attention",
       "mlp",
       "recompute",
       "ranks",
       "length",
       "reshard_after_backward",
       "outcome",
       "seconds",
       "counted_saved_bytes",
       "saved_bytes",
       "counted_peak_bytes",
       "peak_bytes"});
  return {
      .attention = node.at("attention").text(),
      .mlp = node.at("mlp").text(),
      .recompute = node.at("recompute").text(),
      .ranks = node.at("ranks").integer<int>(1),
      .length = node.at("length").integer<std::int64_t>(0),
      .reshard_after_backward = node.at("reshard_after_backward").truth(),
      .outcome = outcome_from(node.at("outcome")),
      .seconds = spread_from(node.at("seconds")),
      .counted_saved_bytes = node.at("counted_saved_bytes").integer<std::int64_t>(0),
      .saved_bytes = node.at("saved_bytes").integer<std::int64_t>(0),
      .counted_peak_bytes = node.at("counted_peak_bytes").integer<std::int64_t>(0),
      .peak_bytes = node.at("peak_bytes").integer<std::int64_t>(0)};
}

CollectiveProbe collective_from(const JsonNode& node) {
  node.allow({"probe", "collective", "ranks", "bytes", "seconds"});
  return {
      .collective = node.at("collective").text(),
      .ranks = node.at("ranks").integer<int>(1),
      .bytes = node.at("bytes").integer<std::int64_t>(0),
      .seconds = spread_from(node.at("seconds"))};
}

KernelProbe kernel_from(const JsonNode& node) {
  node.allow({"probe", "kernel", "shape", "flops", "seconds"});
  return {
      .kernel = node.at("kernel").text(),
      .shape = node.at("shape").integers<std::int64_t>(),
      .flops = node.at("flops").number_from_0(),
      .seconds = spread_from(node.at("seconds"))};
}

void add_probe(const JsonNode& node, Profile& profile) {
  const std::vector<std::string> kinds = {"part", "step", "collective", "kernel"};
  const std::string kind = node.at("probe").text();
  if (kind == "part") {
    profile.parts.push_back(part_from(node));
  } else if (kind == "step") {
    profile.steps.push_back(step_from(node));
  } else if (kind == "collective") {
    profile.collectives.push_back(collective_from(node));
  } else if (kind == "kernel") {
    profile.kernels.push_back(kernel_from(node));
  } else {
    node.at("probe").fail(
        "'" + kind + "' is not a kind of probe" + did_you_mean(kind, kinds) +
        "; there are part, step, collective, kernel");
  }
}

ProfileHeader first_line_from(const JsonNode& node) {
  expect_format(
      node,
      kProfileFormat,
      kProfileVersion,
      "this is not a profile; give one that `paradyse profile` wrote",
      "profile again");
  return header_from(node, {"format", "version"});
}

struct Content {
  Profile profile;
  std::size_t bytes = 0;  // of the whole lines
};

Content content_from(const std::string& text, const std::string& file) {
  Content content;
  for (std::size_t line = 1; content.bytes < text.size(); ++line) {
    const std::size_t end = text.find('\n', content.bytes);
    if (end == std::string::npos) {
      break;  // half a line: what a killed profile leaves
    }
    const JsonSource source{
        .name = file + ": line " + std::to_string(line),
        .whole = line == 1 ? "the header" : "the probe"};
    const nlohmann::json json = parse_json(text.substr(content.bytes, end - content.bytes), source);
    if (line == 1) {
      content.profile.header = first_line_from({json, source});
    } else {
      add_probe({json, source}, content.profile);
    }
    content.bytes = end + 1;
  }
  if (content.bytes == 0) {
    throw std::invalid_argument(
        file +
        ": line 1: has no whole line: this is not a profile; give one that `paradyse profile` " +
        "wrote, or remove it and profile again");
  }
  return content;
}

}  // namespace

Profile read_profile(const std::filesystem::path& file) {
  const std::string text =
      content_of_named(file, "make it with `paradyse profile` (docs/internals/costs.md)");
  return content_from(text, file.string()).profile;
}

namespace {

Spread pooled(const std::vector<Spread>& spreads) {
  std::vector<double> medians;
  Spread all = spreads.front();
  for (const Spread& one : spreads) {
    medians.push_back(one.median);
    all.least = std::min(all.least, one.least);
    all.most = std::max(all.most, one.most);
  }
  all.median = median(std::move(medians));
  return all;
}

// The probes of each key together, those that were measured where any was.
template <typename Probe, typename KeyOf>
std::vector<std::vector<const Probe*>> alike(
    const std::vector<Probe>& probes, const KeyOf& key_of) {
  std::vector<std::vector<const Probe*>> groups;
  std::map<decltype(key_of(probes.front())), std::size_t> places;
  for (const Probe& probe : probes) {
    const auto [place, fresh] = places.try_emplace(key_of(probe), groups.size());
    if (fresh) {
      groups.emplace_back();
    }
    std::vector<const Probe*>& group = groups[place->second];
    if (!group.empty() && group.front()->outcome != probe.outcome) {
      if (probe.outcome != Outcome::measured) {
        continue;
      }
      group.clear();
    }
    group.push_back(&probe);
  }
  return groups;
}

template <typename Probe, typename SecondsOf>
Spread pooled(const std::vector<const Probe*>& probes, const SecondsOf& seconds_of) {
  std::vector<Spread> spreads;
  spreads.reserve(probes.size());
  for (const Probe* probe : probes) {
    spreads.push_back(seconds_of(*probe));
  }
  return pooled(spreads);
}

// Medians of those that have any.
std::optional<std::array<double, kPartPhases>> pooled_processor(
    const std::vector<const PartProbe*>& probes) {
  std::array<std::vector<double>, kPartPhases> seconds;
  for (const PartProbe* probe : probes) {
    for (std::size_t i = 0; i < kPartPhases && probe->processor_seconds; ++i) {
      seconds[i].push_back((*probe->processor_seconds)[i]);
    }
  }
  if (seconds[0].empty()) {
    return std::nullopt;
  }
  std::array<double, kPartPhases> medians{};
  std::ranges::transform(seconds, medians.begin(), [](std::vector<double>& of_phase) {
    return median(std::move(of_phase));
  });
  return medians;
}

}  // namespace

Profile pooled(const Profile& profile) {
  Profile all{
      .header = profile.header, .collectives = profile.collectives, .kernels = profile.kernels};
  const auto parts = alike(profile.parts, [](const PartProbe& p) {
    return std::tuple(p.part, p.strategy, p.recompute, p.ranks, p.length, p.reshard_after_backward);
  });
  for (const auto& group : parts) {
    PartProbe& part = all.parts.emplace_back(*group.front());
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      part.seconds[i] = pooled(group, [&](const PartProbe& p) { return p.seconds[i]; });
    }
    part.processor_seconds = pooled_processor(group);
  }
  const auto steps = alike(profile.steps, [](const StepProbe& s) {
    return std::tuple(s.attention, s.mlp, s.recompute, s.ranks, s.length, s.reshard_after_backward);
  });
  for (const auto& group : steps) {
    StepProbe& step = all.steps.emplace_back(*group.front());
    step.seconds = pooled(group, [](const StepProbe& s) { return s.seconds; });
    for (const StepProbe* one : group) {
      step.saved_bytes = std::max(step.saved_bytes, one->saved_bytes);
      step.peak_bytes = std::max(step.peak_bytes, one->peak_bytes);
    }
  }
  return all;
}

std::optional<std::int64_t> attention_dense_from(const Profile& profile) {
  std::map<std::int64_t, std::map<std::string, double>> seconds;  // by tokens, by kernel
  for (const KernelProbe& probe : profile.kernels) {
    if ((probe.kernel == kFlashKernel || probe.kernel == kDenseKernel) && !probe.shape.empty()) {
      seconds[probe.shape.front()][probe.kernel] = probe.seconds.median;
    }
  }
  std::erase_if(seconds, [](const auto& entry) { return entry.second.size() < 2; });
  if (seconds.empty()) {
    return std::nullopt;
  }
  std::int64_t from = 2 * seconds.rbegin()->first;
  for (auto it = seconds.rbegin(); it != seconds.rend(); ++it) {
    const auto& [tokens, of_kernel] = *it;
    if (of_kernel.at(kDenseKernel) >= of_kernel.at(kFlashKernel)) {
      break;
    }
    from = tokens;
  }
  return from;
}

ProfileWriter::ProfileWriter(
    const std::filesystem::path& file, const ProfileHeader& header, Profile& known) {
  const std::string line = first_line(header);
  const std::optional<std::string> text = content_of(file);
  Content content{.profile = {.header = header}, .bytes = line.size()};
  if (text && !text->empty()) {
    content = content_from(*text, file.string());
    const std::string difference = difference_of(content.profile.header, header);
    if (!difference.empty()) {
      throw std::invalid_argument(
          file.string() + ": line 1: is a profile of another setup: " + difference +
          "; name another file for this one, or move that one away");
    }
  } else {
    replace_file(file, line);
  }
  end_ = std::make_unique<FileEnd>(file, content.bytes);
  known = std::move(content.profile);
}

ProfileWriter::~ProfileWriter() = default;

void ProfileWriter::add(const PartProbe& probe) { end_->append(line_of(json_of(probe))); }
void ProfileWriter::add(const StepProbe& probe) { end_->append(line_of(json_of(probe))); }
void ProfileWriter::add(const CollectiveProbe& probe) { end_->append(line_of(json_of(probe))); }
void ProfileWriter::add(const KernelProbe& probe) { end_->append(line_of(json_of(probe))); }

}  // namespace paradyse
