#include "src/run/train/agreement.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/xxh64.h"
#include "src/run/comm/rendezvous/printable.h"
#include "src/run/execute/gather.h"
#include "src/run/memory/reading.h"
#include "src/run/train/files.h"
#include "src/run/train/resume.h"
#include "src/run/weights/safetensors.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Where files lie, how processes find one another and how long they wait, and what rank 0 alone
// goes by.
constexpr std::array kMayDiffer = {
    "model.path",
    "lora.path",
    "data.path",
    "data.eval_path",
    "output.folder",
    "output.name",
    "parallel.backend",
    "parallel.rendezvous",
    "parallel.interface",
    "parallel.timeout_seconds"};

// Ways to costs; else a file is named, which is compared by what is in it.
constexpr std::array kWaysToCosts = {"auto", "measure", "none"};

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 8;
  const std::vector<int> first(
      ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, ranks.size())));
  return fmt::format(
      "rank{} {}{}",
      ranks.size() == 1 ? "" : "s",
      fmt::join(first, ", "),
      ranks.size() > kShown ? fmt::format(" and {} more", ranks.size() - kShown) : "");
}

std::string excerpt_of(const std::string& value) {
  constexpr std::size_t kShown = 80;
  return value.size() > kShown ? value.substr(0, kShown) + "..." : value;
}

// What differs between what ranks have; [rank].
std::string differences(const std::vector<std::map<std::string, std::string>>& of_ranks) {
  constexpr std::size_t kShown = 5;                                      // items
  std::map<std::string, std::map<std::string, std::vector<int>>> items;  // name -> value -> ranks
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    for (const auto& [name, value] : of_ranks[r]) {
      items[name][value].push_back(static_cast<int>(r));
    }
  }
  std::vector<std::string> lines;
  for (auto& [name, values] : items) {
    std::vector<std::pair<std::vector<int>, std::string>> by_ranks;  // those of rank 0 first
    std::size_t having = 0;
    for (auto& [value, ranks] : values) {
      having += ranks.size();
      by_ranks.emplace_back(std::move(ranks), excerpt_of(value));
    }
    if (having < of_ranks.size()) {
      std::vector<int> without;
      for (std::size_t r = 0; r < of_ranks.size(); ++r) {
        if (!of_ranks[r].contains(name)) {
          without.push_back(static_cast<int>(r));
        }
      }
      by_ranks.emplace_back(std::move(without), "not given");
    }
    if (by_ranks.size() == 1) {
      continue;
    }
    std::ranges::sort(by_ranks);
    std::string line = name;
    for (std::size_t i = 0; i < by_ranks.size(); ++i) {
      line += fmt::format(
          "{} {} on {}",
          i == 0                     ? " is"
          : i + 1 == by_ranks.size() ? " and"
                                     : ",",
          by_ranks[i].second,
          ranks_text(by_ranks[i].first));
    }
    lines.push_back(std::move(line));
  }
  const std::size_t more = lines.size() > kShown ? lines.size() - kShown : 0;
  lines.resize(lines.size() - more);
  return fmt::format(
      "all ranks of a run need the same input, but theirs differ: {}{}. Give all of them the same "
      "files, settings and program",
      fmt::join(lines, "; "),
      more > 0 ? fmt::format("; and {} more", more) : "");
}

std::int64_t as_number(std::uint64_t hash) { return static_cast<std::int64_t>(hash); }

std::uint64_t hash_of(const std::string& text) {
  Xxh64 hash;
  hash.add(text);
  return hash.value();
}

// Another number for each file on each machine; a file that is written again is another.
std::string identity(const fs::path& file) {
  struct stat status{};
  if (::stat(file.c_str(), &status) != 0) {
    throw std::invalid_argument(
        file.string() + ": cannot be read: " + std::generic_category().message(errno));
  }
  return fmt::format(
      "{}:{}:{}:{}.{}|",
      status.st_dev,
      status.st_ino,
      status.st_size,
      status.st_mtim.tv_sec,
      status.st_mtim.tv_nsec);
}

// Of this machine since it was started.
std::string boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

constexpr std::int64_t kBlock = std::int64_t{8} << 20;  // bytes

// The sum of the hashes of every `of`th block, from block `part` on, each with its number.
std::uint64_t hash_of_blocks(
    const std::vector<fs::path>& files, std::int64_t part, std::int64_t of) {
  std::uint64_t sum = 0;
  std::int64_t block = 0;
  std::vector<char> bytes(idx(kBlock));
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const auto size = static_cast<std::int64_t>(fs::file_size(file));
    for (std::int64_t begin = 0; begin < size; begin += kBlock, ++block) {
      if (block % of != part) {
        continue;
      }
      const std::int64_t length = std::min(kBlock, size - begin);
      errno = 0;
      if (!stream.seekg(begin) || !stream.read(bytes.data(), length)) {
        throw std::invalid_argument(
            file.string() + ": cannot be read to its end" +
            (errno == 0 ? "" : ": " + std::generic_category().message(errno)));
      }
      Xxh64 hash;
      hash.add({reinterpret_cast<const char*>(&block), sizeof(block)});
      hash.add({bytes.data(), idx(length)});
      sum += hash.value();
    }
  }
  return sum;
}

}  // namespace

std::string difference_of_ranks(const std::vector<Given>& mine, Communicator& world) {
  json items = json::object();
  for (const Given& item : mine) {
    items[item.name] = item.value;
  }
  const std::string text = items.dump(-1, ' ', false, json::error_handler_t::replace);
  const auto hashes = gather({as_number(hash_of(text))}, world);
  if (std::ranges::all_of(hashes, [&](const auto& one) { return one == hashes.front(); })) {
    return "";
  }
  const std::vector<std::string> texts = gather_texts(text, world);
  std::string told;
  if (world.rank() == 0) {
    std::vector<std::map<std::string, std::string>> of_ranks;
    of_ranks.reserve(texts.size());
    for (const std::string& one : texts) {
      of_ranks.push_back(json_in(one).get<std::map<std::string, std::string>>());
    }
    told = differences(of_ranks);
  }
  return rendezvous::printable(broadcast_text(told, "what differs", world));
}

void expect_same_on_ranks(const std::vector<Given>& mine, int ranks, Backend& backend) {
  if (backend.name() == "local" || ranks == 1) {
    return;
  }
  std::string told;
  backend.run(ranks, [&](Communicators& communicators) {
    told = difference_of_ranks(mine, communicators.world());
  });
  if (!told.empty()) {  // here, where all have it: no rank fails before another
    throw RanksDiffer(told);
  }
}

std::vector<Given> given_by(const LoadedConfig& config) {
  const std::string& costs = config.config.costs.file;
  const bool named = std::ranges::find(kWaysToCosts, costs) == kWaysToCosts.end();
  std::vector<Given> items;
  for (const ConfigEntry& entry : config.entries) {
    if (std::ranges::find(kMayDiffer, entry.key) == kMayDiffer.end()) {
      const bool moments = entry.key == "optimizer.path" && !config.config.optimizer.path.empty();
      items.push_back(
          {entry.key,
           moments                              ? "a folder"  // given_moments() has its contents
           : named && entry.key == "costs.file" ? "a file"
                                                : entry.value});
    }
  }
  if (named) {
    items.push_back(given_file("the file of costs.file", costs));
  }
  return items;
}

Given given_data(const std::string& name, const Dataset& data) {
  return {
      "the contents of " + name,
      fmt::format("XXH64 {} ({} documents)", data.fingerprint(), data.size())};
}

std::vector<Given> given_model(
    const std::string& name,
    const ModelFolder& model,
    const ModelWeights& weights,
    int ranks,
    Backend& backend) {
  std::vector<Given> items = {
      {"the configuration of " + name, "SHA-256 " + model.model.sha256.substr(0, 16)}};
  std::string rates;
  for (const auto& [what, rate] : dropout_rates(model.model)) {
    rates.append(rates.empty() ? "" : ", ").append(what).append(" ").append(rate);
  }
  items.push_back({"the dropout of " + name, rates.empty() ? "none" : rates});
  if (backend.name() == "local" || ranks == 1) {
    return items;
  }
  std::vector<fs::path> files;  // none: they are random
  if (!weights.random()) {
    files = weights.reader->files();
  }
  if (weights.adapters != nullptr) {
    const std::vector<fs::path> adapters = weights.adapters->files();
    files.insert(files.end(), adapters.begin(), adapters.end());
  }
  std::string hash;
  backend.run(ranks, [&](Communicators& communicators) {
    hash = shared_hash(files, communicators.world());
  });
  items.push_back(
      {"the weights of " + name,
       weights.random() && hash.empty() ? fmt::format("random, seed {}", weights.seed)
       : hash.empty()                   ? "the same files"
                                        : "XXH64 " + hash});
  return items;
}

Given given_moments(const StoredMoments& moments, int ranks, Backend& backend) {
  std::vector<fs::path> files = moments.mean->files();
  const std::vector<fs::path> more = moments.variance->files();
  files.insert(files.end(), more.begin(), more.end());
  std::string hash;
  backend.run(ranks, [&](Communicators& communicators) {
    hash = shared_hash(files, communicators.world());
  });
  return {"the moments of optimizer.path", hash.empty() ? "the same files" : "XXH64 " + hash};
}

std::string frozen_fingerprint(const ModelWeights& weights, Communicator& world) {
  if (weights.random()) {
    return fmt::format("random, seed {}", weights.seed);
  }
  const std::vector<fs::path> files = weights.reader->files();
  std::string mine;  // a line for each file
  std::string wrong;
  try {
    for (std::size_t f = idx(world.rank()); f < files.size(); f += idx(world.size())) {
      mine += fmt::format("{:06} {}\n", f, file_xxh64(files[f]));
    }
  } catch (const std::runtime_error& error) {  // everybody's news
    wrong = error.what();
  }
  if (const std::string of_any = first_text(wrong, world); !of_any.empty()) {
    throw std::invalid_argument("model.path: " + of_any);
  }
  std::vector<std::string> lines;
  for (const std::string& text : gather_texts(mine, world)) {
    std::istringstream of_rank(text);
    for (std::string line; std::getline(of_rank, line);) {
      lines.push_back(line);
    }
  }
  std::ranges::sort(lines);
  const std::string all =
      broadcast_text(fmt::format("{}", fmt::join(lines, "\n")), "frozen weights", world);
  return fmt::format("XXH64 {:016x}", hash_of(all));
}

std::string frozen_fingerprint(const ModelWeights& weights, int ranks, Backend& backend) {
  std::string fingerprint;
  backend.run(ranks, [&](Communicators& communicators) {
    const std::string same = frozen_fingerprint(weights, communicators.world());
    if (communicators.rank() == backend.first_rank()) {
      fingerprint = same;
    }
  });
  return fingerprint;
}

Given given_costs(const std::string& fingerprint) {
  return {
      "the costs that were measured before",
      fingerprint.empty() ? "none" : "SHA-256 " + fingerprint.substr(0, 16)};
}

void expect_same_costs(const std::string& fingerprint, int ranks, Backend& backend) {
  if (backend.name() == "local" || ranks == 1) {
    return;
  }
  Given costs = given_costs(fingerprint);
  std::string of_first;
  backend.run(ranks, [&](Communicators& communicators) {
    of_first = broadcast_text(costs.value, "costs", communicators.world());
  });
  if (fingerprint.empty()) {
    costs.value = of_first;
  }
  expect_same_on_ranks({costs}, ranks, backend);
}

Given given_file(const std::string& name, const fs::path& file) {
  std::string why = why_not_readable(file);
  try {
    if (why.empty()) {
      Xxh64 hash;
      hash.add(content_of(file).value_or(""));
      return {name, "XXH64 " + hash.hex()};
    }
  } catch (const std::runtime_error& error) {  // it has no end, or is gone again
    why = error.what();
  }
  return {name, "cannot be read: " + why};
}

std::string shared_hash(const std::vector<fs::path>& files, Communicator& world) {
  std::string mine = boot();
  for (const fs::path& file : files) {
    mine += identity(file);
  }
  const auto identities = gather({as_number(hash_of(mine))}, world);
  const std::vector<std::int64_t>& own = identities[idx(world.rank())];
  const auto sharing = std::ranges::count(identities, own);
  if (sharing == world.size()) {
    return "";
  }
  const auto before =
      std::ranges::count(identities.begin(), identities.begin() + world.rank(), own);
  const auto sums = gather({as_number(hash_of_blocks(files, before, sharing))}, world);
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < sums.size(); ++r) {
    if (identities[r] == own) {
      sum += static_cast<std::uint64_t>(sums[r][0]);
    }
  }
  Xxh64 whole;  // and where one file ends and the next begins
  for (const fs::path& file : files) {
    whole.add(std::to_string(fs::file_size(file)) + "|");
  }
  return fmt::format("{:016x}", sum ^ whole.value());
}

}  // namespace paradyse
