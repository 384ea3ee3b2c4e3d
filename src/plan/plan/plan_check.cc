// The checker: what is wrong with a plan that could be read.  Each rule is a function of its own.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "paradyse/plan/group_timeline.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/base/text_match.h"

namespace paradyse {
namespace {

// More tokens than any batch has: a bound below which counts of bytes and operations fit 64 bits.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

template <typename T>
std::string text(const T& value) {
  return std::to_string(value);
}

std::string text(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

std::string text(Interval ranks) {  // inclusive, for people
  return ranks.size() == 1 ? text(ranks.begin) : text(ranks.begin) + "-" + text(ranks.end - 1);
}

// The verb of each part over a run of layers.
struct VerbRun {
  std::int64_t layers = 0;
  std::vector<Verb> parts;
};

// What can be said of a program without a group.
struct CheckedProgram {
  bool sound = false;          // all names known and as many layers as the model
  std::vector<VerbRun> verbs;  // when sound
};

// The first layer in which two sound programs use different verbs for part `part`, or -1.
std::int64_t first_difference(
    const std::vector<VerbRun>& a, const std::vector<VerbRun>& b, std::size_t part) {
  std::int64_t layer = 0;
  std::size_t i = 0;
  std::size_t j = 0;
  std::int64_t a_end = a.empty() ? 0 : a[0].layers;
  std::int64_t b_end = b.empty() ? 0 : b[0].layers;
  while (i < a.size() && j < b.size()) {
    if (a[i].parts[part] != b[j].parts[part]) {
      return layer;
    }
    layer = std::min(a_end, b_end);
    if (a_end == layer && ++i < a.size()) {
      a_end += a[i].layers;
    }
    if (b_end == layer && ++j < b.size()) {
      b_end += b[j].layers;
    }
  }
  return -1;
}

std::string verb_at(const std::vector<VerbRun>& runs, std::int64_t layer, std::size_t part) {
  std::int64_t end = 0;
  for (const VerbRun& run : runs) {
    end += run.layers;
    if (layer < end) {
      return to_string(run.parts[part]);
    }
  }
  return "nothing";
}

// The collectives of a micro-batch in the order in which the walk issues them.  A program is one
// list for all ranks of its group, so the ranks of a group cannot differ; that each copy has a
// seat for every one of them is checked here.
class Recorder : public Machine {
 public:
  struct Collective {
    std::string what;
    const Redistribution* copy = nullptr;
  };

  explicit Recorder(const Timeline& timeline) : timeline_(timeline) {
    walk_forward(timeline, *this);
    walk_backward(timeline, *this);
  }

  // Those over the weight domain.
  [[nodiscard]] const std::vector<Collective>& over_domain() const { return over_domain_; }

  void prefetch(std::size_t part, int op) override { record(part, op, "forward"); }
  void forward(std::size_t part, int op) override {
    if (!traits(op_of(part, op).kind).prefetched) {  // recorded when it was
      record(part, op, "forward");
    }
  }
  void adjoint(std::size_t part, int op) override { record(part, op, "backward"); }
  void drop_value(std::size_t /*part*/, ValueId /*value*/) override {}
  void offload(std::size_t /*part*/, ValueId /*value*/) override {}
  void fetch(std::size_t /*part*/, ValueId /*value*/) override {}
  void drop_gradients(std::size_t /*part*/, int /*op*/) override {}
  void hand_forward(std::size_t /*part*/) override {}
  void hand_backward(std::size_t /*part*/) override {}

 private:
  [[nodiscard]] const Op& op_of(std::size_t part, int op) const {
    return timeline_[part].program().ops[static_cast<std::size_t>(op)];
  }

  void record(std::size_t part, int i, const std::string& phase) {
    const ScheduledPart& scheduled = timeline_[part];
    const Program& program = scheduled.program();
    const Op& op = op_of(part, i);
    const bool over_domain = traits(op.kind).meets == OpTraits::Meets::domain;
    const std::string layer = scheduled.layer < 0 ? "" : "layer " + text(scheduled.layer) + " ";
    const std::string what = layer + program.part + ": " + to_string(op.kind) + " " + phase;
    for (const Redistribution& copy : op.copies) {
      const int seats = over_domain ? program.domain : program.ranks();
      if (copy.ranks() != seats) {
        throw std::logic_error(
            "problems: " + to_string(op.kind) + " of " + program.strategy + " has a copy for " +
            text(copy.ranks()) + " ranks, but runs on " + text(seats));
      }
      if (over_domain) {
        over_domain_.push_back({what, &copy});
      }
    }
  }

  const Timeline& timeline_;
  std::vector<Collective> over_domain_;
};

bool same(const Recorder::Collective& a, const Recorder::Collective& b) {
  return a.what == b.what && a.copy->same_as(*b.copy);
}

class Checker {
 public:
  Checker(const Plan& plan, const CheckContext& context) : plan_(plan), context_(context) {
    if (context.model != nullptr) {
      model_ = text_model(*context.model);
    }
  }

  std::vector<std::string> run() {
    check_sizes();
    for (const auto& [name, runs] : plan_.programs) {
      programs_[name] = check_program(path_to("programs", name), runs);
    }
    check_documents();
    for (std::size_t m = 0; m < plan_.micro_batches.size(); ++m) {
      check_micro_batch(path_to("micro_batches", m), plan_.micro_batches[m]);
    }
    return std::move(problems_);
  }

 private:
  // A group of a micro-batch, and what is known of it so far.
  struct Group {
    const PlanGroup* group = nullptr;
    std::string path;
    const CheckedProgram* program = nullptr;  // null: unknown or unsound
    int domain = -1;                          // number of its weight domain; -1: in none or several
    bool buildable = false;
  };

  void say(const std::string& path, const std::string& what) {
    problems_.push_back(path + ": " + what);
  }

  void check_sizes() {
    sizes_sound_ = true;
    const auto require = [&](bool sound, const std::string& path, const std::string& what) {
      if (!sound) {
        say(path, what);
        sizes_sound_ = false;
      }
    };
    require(plan_.ranks >= 1, "cluster.ranks", text(plan_.ranks) + " ranks: at least 1 is needed");
    require(
        plan_.weight_domain >= 1 && plan_.ranks % plan_.weight_domain == 0,
        "weight_domain",
        text(plan_.weight_domain) + " does not divide the cluster's " + text(plan_.ranks) +
            " ranks: domains are equal runs of neighbouring ranks");
    domains_sound_ = sizes_sound_;
    require(
        plan_.layers >= 0, "model.layers", text(plan_.layers) + " layers: a model has 0 or more");
    if (context_.model != nullptr) {
      require(
          plan_.layers == context_.model->layers,
          "model.layers",
          "the plan has " + text(plan_.layers) + " layers, the model " +
              text(context_.model->layers) + ": plan for this model");
      const std::string ours = fingerprint(*context_.model);
      require(
          plan_.model_sha256.empty() || plan_.model_sha256 == ours,
          "model.sha256",
          "the plan is for a model " + plan_.model_sha256 + ", this one is " + ours +
              ": plan for this model");
    }
    std::int64_t tokens = 0;
    for (std::size_t d = 0; d < plan_.lengths.size(); ++d) {
      const std::int64_t n = plan_.lengths[d];
      require(n >= 0, path_to("lengths", d), text(n) + " tokens: a document has 0 or more");
      const bool fits = n <= kMostTokens - tokens;
      require(
          fits,
          path_to("lengths", d),
          text(n) + " tokens: a batch has at most " + text(kMostTokens) + " in all");
      tokens += n >= 0 && fits ? n : 0;
    }
  }

  // Calls `look`; what it throws is a problem at `path`.
  bool known(const std::string& path, const std::function<void()>& look) {
    try {
      look();
      return true;
    } catch (const std::invalid_argument& error) {
      say(path, error.what());
      return false;
    }
  }

  CheckedProgram check_program(const std::string& path, const LayerProgram& runs) {
    CheckedProgram checked{.sound = true, .verbs = {}};
    std::int64_t rest = plan_.layers;
    bool counted = true;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const LayerRun& run = runs[i];
      const std::string here = path_to(path, i);
      if (run.layers < 1) {
        say(here + ".layers", text(run.layers) + " layers: a run has at least 1");
        counted = false;
      } else if (counted && run.layers > rest) {
        say(here + ".layers",
            text(run.layers) + " layers, but only " + text(rest) + " of the model's " +
                text(plan_.layers) + " are left");
        counted = false;
      } else {
        rest -= counted ? run.layers : 0;
      }
      VerbRun verbs{.layers = run.layers, .parts = {}};
      for (std::size_t p = 0; p < layer_parts().size(); ++p) {
        const bool there =
            run.choice.size() == layer_parts().size() && run.choice[p].part == layer_parts()[p];
        if (!there) {
          say(here + ".parts", "the parts of a layer are attention, then mlp");
          checked.sound = false;
          break;
        }
        const PartChoice& choice = run.choice[p];
        checked.sound &= known(path_to(here + ".parts", p) + ".strategy", [&] {
          verbs.parts.push_back(strategy(choice.part, choice.strategy).verb);
        });
      }
      checked.verbs.push_back(std::move(verbs));
    }
    if (counted && rest != 0) {
      say(path,
          "its layers add up to " + text(plan_.layers - rest) + ", the model has " +
              text(plan_.layers));
    }
    checked.sound &= counted && rest == 0;
    return checked;
  }

  // Each document stands in exactly one group of the whole plan.
  void check_documents() {
    std::vector<std::string> places(plan_.lengths.size());
    for (std::size_t m = 0; m < plan_.micro_batches.size(); ++m) {
      const std::string micro_batch = path_to("micro_batches", m);
      for (std::size_t g = 0; g < plan_.micro_batches[m].groups.size(); ++g) {
        const auto& documents = plan_.micro_batches[m].groups[g].documents;
        for (std::size_t i = 0; i < documents.size(); ++i) {
          const std::string here = path_to(path_to(micro_batch + ".groups", g) + ".documents", i);
          if (!document_exists(documents[i])) {
            say(here,
                "document " + text(documents[i]) + " does not exist: there are " +
                    text(plan_.lengths.size()) + ", counted from 0");
            continue;
          }
          std::string& place = places[static_cast<std::size_t>(documents[i])];
          if (!place.empty()) {
            say(here,
                "document " + text(documents[i]) + " already stands at " + place +
                    ": each stands in one group");
          } else {
            place = here;
          }
        }
      }
    }
    for (std::size_t d = 0; d < places.size(); ++d) {
      if (places[d].empty()) {
        say(path_to("lengths", d),
            "document " + text(d) + " stands in no group: each stands in exactly one");
      }
    }
  }

  [[nodiscard]] bool document_exists(std::int64_t document) const {
    return document >= 0 && static_cast<std::size_t>(document) < plan_.lengths.size();
  }

  void check_micro_batch(const std::string& path, const PlanMicroBatch& micro_batch) {
    std::vector<Group> groups;
    groups.reserve(micro_batch.groups.size());
    for (std::size_t g = 0; g < micro_batch.groups.size(); ++g) {
      groups.push_back(check_group(path_to(path + ".groups", g), micro_batch.groups[g]));
    }
    const bool covered = check_cover(path, groups);
    check_lock_step(groups);
    if (context_.model != nullptr && sizes_sound_ && covered) {
      check_built(groups);
    }
  }

  Group check_group(const std::string& path, const PlanGroup& group) {
    Group checked{.group = &group, .path = path};
    const std::size_t before = problems_.size();
    check_ranks(checked);
    const std::size_t size = group.ranks.size();
    if (group.documents.empty() && size > 1) {
      say(path + ".documents",
          "none for a group of " + text(size) + " ranks: each idle rank is a group of its own");
    }
    check_shares(path + ".shares", group);
    const auto found = programs_.find(group.program);
    if (found == programs_.end()) {
      std::vector<std::string> names;
      names.reserve(programs_.size());
      for (const auto& [name, program] : programs_) {
        names.push_back(name);
      }
      std::string list;
      for (const std::string& name : names) {
        list += (list.empty() ? "" : ", ") + name;
      }
      say(path + ".program",
          "there is no program '" + group.program + "'" + did_you_mean(group.program, names) +
              "; there are: " + list);
    } else if (found->second.sound) {
      checked.program = &found->second;
      check_fit(checked);
    }
    checked.buildable =
        checked.program != nullptr && problems_.size() == before &&
        std::all_of(group.documents.begin(), group.documents.end(), [&](std::int64_t d) {
          return document_exists(d);
        });
    return checked;
  }

  // Positive numbers, one a rank.
  void check_shares(const std::string& path, const PlanGroup& group) {
    const std::vector<double>& shares = group.shares;
    if (shares.empty()) {
      return;
    }
    if (shares.size() != group.ranks.size()) {
      say(path,
          text(shares.size()) + " for a group of " + text(group.ranks.size()) +
              " ranks: give each rank one, or leave the key out for even cuts");
    }
    bool sound = true;
    for (std::size_t r = 0; r < shares.size(); ++r) {
      if (!(std::isfinite(shares[r]) && shares[r] > 0)) {
        say(path_to(path, r),
            text(shares[r]) + ": a share is a positive number; a rank that gets no tokens is an " +
                "idle group of its own");
        sound = false;
      }
    }
    if (sound && !std::isfinite(std::accumulate(shares.begin(), shares.end(), 0.0))) {
      say(path, "they add up to more than a number holds: make all of them smaller");
    }
  }

  // Ranks ascend, are the cluster's and lie in one weight domain.
  void check_ranks(Group& checked) {
    const std::vector<int>& ranks = checked.group->ranks;
    const std::string path = checked.path + ".ranks";
    if (ranks.empty()) {
      say(path, "no ranks: a group has at least 1");
      return;
    }
    bool sound = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] < 0 || ranks[i] >= plan_.ranks) {
        say(path_to(path, i),
            "rank " + text(ranks[i]) + " does not exist: the cluster has " + text(plan_.ranks) +
                ", counted from 0");
        sound = false;
      } else if (i > 0 && ranks[i] <= ranks[i - 1]) {
        say(path_to(path, i),
            "rank " + text(ranks[i]) + " stands after rank " + text(ranks[i - 1]) +
                ": ranks of a group ascend");
        sound = false;
      }
    }
    if (!sound || !domains_sound_) {
      return;
    }
    const int first = ranks.front() / plan_.weight_domain;
    const int last = ranks.back() / plan_.weight_domain;
    if (first != last) {
      say(path,
          "the group spans weight domains " + text(first) + " and " + text(last) + " of " +
              text(plan_.weight_domain) + " ranks each: a group lies inside one");
    } else {
      checked.domain = first;
    }
  }

  // The program's strategies run on a group of this size.
  void check_fit(const Group& checked) {
    const std::size_t size = checked.group->ranks.size();
    const LayerProgram& runs = plan_.programs.at(checked.group->program);
    const std::string program = path_to("programs", checked.group->program);
    Task task{
        .part = nullptr,
        .documents = {.lengths = {}, .cuts = Cuts(size)},
        .domain = plan_.weight_domain};
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (std::size_t p = 0; p < runs[i].choice.size(); ++p) {
        const PartChoice& choice = runs[i].choice[p];
        const std::string part = path_to(path_to(program, i) + ".parts", p);
        task.part = model_ ? model_->part(choice.part) : nullptr;
        for (const Misfit& misfit : misfits(task, choice)) {
          if (misfit.option.empty()) {
            say(checked.path + ".program",
                "'" + choice.strategy + "' (" + part + ".strategy) " + misfit.why);
          } else {
            say(part + "." + misfit.option, misfit.why + " (" + checked.path + ")");
          }
        }
      }
    }
  }

  // The groups are disjoint and cover the ranks; the latter is returned.
  bool check_cover(const std::string& path, const std::vector<Group>& groups) {
    std::map<std::int64_t, const Group*> owner;
    for (const Group& group : groups) {
      for (std::size_t i = 0; i < group.group->ranks.size(); ++i) {
        const int rank = group.group->ranks[i];
        const auto [other, first] = owner.emplace(rank, &group);
        if (!first && other->second != &group) {
          say(path_to(group.path + ".ranks", i),
              "rank " + text(rank) + " is already in " + other->second->path +
                  ": groups of a micro-batch are disjoint");
        }
      }
    }
    std::string missing;
    std::int64_t next = 0;
    const auto gap = [&](std::int64_t end) {
      if (next < end) {
        missing += (missing.empty() ? "" : ", ") + text(Interval{next, end});
      }
      next = end + 1;
    };
    for (auto it = owner.lower_bound(0); it != owner.end() && it->first < plan_.ranks; ++it) {
      gap(it->first);
    }
    gap(plan_.ranks);
    if (!missing.empty()) {
      say(path + ".groups",
          "ranks " + missing +
              " are in no group: the groups of a micro-batch cover all ranks; an " +
              "idle rank is a group without documents");
    }
    return missing.empty();
  }

  // The first group of each weight domain, with which the others are compared.
  template <typename Compare>
  static void for_each_pair_of_a_domain(const std::vector<Group>& groups, Compare compare) {
    std::map<int, const Group*> first;
    for (const Group& group : groups) {
      if (group.program == nullptr || group.domain < 0) {
        continue;
      }
      const auto [entry, fresh] = first.emplace(group.domain, &group);
      if (!fresh) {
        compare(*entry->second, group);
      }
    }
  }

  void check_lock_step(const std::vector<Group>& groups) {
    for_each_pair_of_a_domain(groups, [&](const Group& a, const Group& b) {
      for (std::size_t part = 0; part < layer_parts().size(); ++part) {
        const std::int64_t layer = first_difference(a.program->verbs, b.program->verbs, part);
        if (layer >= 0) {
          say(b.path + ".program",
              "in layer " + text(layer) + " its " + layer_parts()[part] + " uses the verb '" +
                  verb_at(b.program->verbs, layer, part) + "', that of " + a.path + " '" +
                  verb_at(a.program->verbs, layer, part) +
                  "': groups of a weight domain run in lock-step");
        }
      }
    });
  }

  // What can be proved only on the programs themselves: equal collectives, and memory.
  void check_built(const std::vector<Group>& groups) {
    std::map<const Group*, GroupTimeline> timelines;
    for (const Group& group : groups) {
      if (group.buildable) {
        known(group.path, [&] {
          timelines[&group] = group_timeline(plan_, *group.group, *model_, context_.training);
        });
      }
    }
    for_each_pair_of_a_domain(groups, [&](const Group& a, const Group& b) {
      if (timelines.contains(&a) && timelines.contains(&b)) {
        check_collectives(a, timelines.at(&a).parts, b, timelines.at(&b).parts);
      }
    });
    if (const auto limit = context_.memory_per_rank) {
      for (const Group& group : groups) {
        if (timelines.contains(&group)) {
          check_memory(group, timelines.at(&group), *limit);
        }
      }
    }
  }

  void check_collectives(
      const Group& a, const Timeline& of_a, const Group& b, const Timeline& of_b) {
    const Recorder first(of_a);
    const Recorder second(of_b);
    const auto& x = first.over_domain();
    const auto& y = second.over_domain();
    std::size_t i = 0;
    while (i < x.size() && i < y.size() && same(x[i], y[i])) {
      ++i;
    }
    if (i < x.size() || i < y.size()) {
      say(b.path,
          "collective " + text(i) + " over weight domain " + text(b.domain) + " is " +
              (i < y.size() ? y[i].what : "missing") + ", that of " + a.path + " is " +
              (i < x.size() ? x[i].what : "missing") + ": the ranks would wait for one another");
    }
  }

  // Every rank's footprint; the fullest that does not fit is named.
  void check_memory(const Group& group, const GroupTimeline& timeline, std::int64_t limit) {
    const std::int64_t of_an_element = context_.static_bytes_per_element.value_or(
        context_.precision.static_bytes(context_.training));
    const std::string what =
        context_.training ? "parameters, gradients and optimizer state" : "parameters";
    std::int64_t most = limit;
    std::string worst;
    for (std::size_t i = 0; i < group.group->ranks.size(); ++i) {
      const int rank = group.group->ranks[i];
      const Seat seat = timeline.seats[i];
      const std::int64_t base =
          of_an_element * stored_elements(*model_, plan_.weight_domain, seat.domain_rank);
      const Footprint held = footprint(timeline.parts, seat, context_.precision, base);
      if (held.peak_bytes > most) {
        most = held.peak_bytes;
        worst = "rank " + text(rank) + " needs " + text(held.peak_bytes) + " bytes at its peak (" +
                what + " " + text(base) + ", saved for the backward pass " +
                text(held.saved_bytes) + "), but has " + text(limit) +
                ": give the documents more ranks" +
                (group.group->shares.empty() ? "" : ", this one a smaller share") +
                " or recompute more";
      }
    }
    if (!worst.empty()) {
      say(group.path, worst);
    }
  }

  const Plan& plan_;
  const CheckContext& context_;
  std::optional<Model> model_;
  bool sizes_sound_ = false;
  bool domains_sound_ = false;
  std::map<std::string, CheckedProgram> programs_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> problems(const Plan& plan, const CheckContext& context) {
  return Checker(plan, context).run();
}

}  // namespace paradyse
