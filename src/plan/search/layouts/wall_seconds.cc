#include "src/plan/search/layouts/wall_seconds.h"

#include <algorithm>
#include <map>

#include "paradyse/plan/index.h"

namespace paradyse {
namespace {

PartSeconds seconds_of(
    const std::string& name,
    const ScheduledPart& part,
    const PartWork& work,
    const SecondsTask& task) {
  const std::vector<std::int64_t>& lengths = part.program().documents.lengths;
  const PartQuestion question{
      .part = name,
      .strategy = name == "rest" || name == "move" ? "" : part.program().strategy,
      .ranks = task.ranks,
      .length = lengths.empty() ? 0 : lengths.front(),
      .work = work};
  return task.seconds ? task.seconds->seconds(question)
                      : closed_form(task.machine)->seconds(question);
}

using Works = std::vector<PartWork>;  // [rank]

void add(const ScheduledPart& part, const SecondsTask& task, Works& works) {
  works.resize(idx(task.ranks));
  for (int rank = 0; rank < task.ranks; ++rank) {
    works[idx(rank)] += part_work(part, {.group_rank = rank, .domain_rank = rank}, task.precision);
  }
}

// Measured seconds are those of the slowest rank, or of a core; the closed form's are means.
PartWork work_of(const Works& works, const SecondsTask& task) {
  if (task.seconds) {
    return together(works, task.machine.cores);
  }
  PartWork mean;
  for (const PartWork& work : works) {
    mean += work;
  }
  mean *= 1.0 / std::min(task.ranks, task.machine.cores);
  return mean;
}

PartWork work_of(const ScheduledPart& part, const SecondsTask& task) {
  Works works;
  add(part, task, works);
  return work_of(works, task);
}

}  // namespace

std::string costed_name(const ScheduledPart& part) {
  const std::string& name = part.program().part;
  return name.starts_with("move ") ? "move" : part.layer < 0 ? "rest" : name;
}

double wall_seconds(const ScheduledPart& part, const SecondsTask& task) {
  return seconds_of(costed_name(part), part, work_of(part, task), task).total();
}

double copying_seconds(const Timeline& parts, const SecondsTask& task) {
  double busy = 0;
  for (int rank = 0; rank < task.ranks; ++rank) {
    busy += host_seconds(
        parts, {.group_rank = rank, .domain_rank = rank}, task.precision, task.machine);
  }
  return busy / std::min(task.ranks, task.machine.cores);
}

double wall_seconds(const Timeline& parts, const SecondsTask& task) {
  std::map<const ScheduledPart::Body*, double> known;  // layers that are alike share it
  Works rest;
  const ScheduledPart* last = nullptr;
  double sum = copying_seconds(parts, task);
  for (const ScheduledPart& part : parts) {
    const std::string name = costed_name(part);
    if (name == "rest") {
      add(part, task, rest);
      last = &part;
      continue;
    }
    const auto [entry, fresh] = known.emplace(part.body.get(), 0.0);
    if (fresh) {
      entry->second = seconds_of(name, part, work_of(part, task), task).total();
    }
    sum += entry->second;
  }
  return last == nullptr ? sum : sum + seconds_of("rest", *last, work_of(rest, task), task).total();
}

}  // namespace paradyse
