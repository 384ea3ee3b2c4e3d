// From what a plan says of the layers to the scheduled parts of a micro-batch, and the moves of
// streams between them.
#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/built_parts.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

using Body = std::shared_ptr<const ScheduledPart::Body>;

Body body(Program program, Recompute level, Keeping keeping) {
  apply(level, program);
  Schedule order = schedule(program, keeping);
  return std::make_shared<ScheduledPart::Body>(
      ScheduledPart::Body{.program = std::move(program), .schedule = std::move(order)});
}

}  // namespace

ScheduledPart scheduled_move(
    const std::string& stream,
    const Layout& from,
    const Layout& to,
    const Documents& documents,
    int domain,
    Keeping keeping) {
  return {
      .body = body(move_program(stream, from, to, documents, domain), Recompute::none, keeping)};
}

Layouts streams_of(
    const Model& model, const Part& part, const PartChoice& choice, const Documents& documents) {
  Layouts streams;
  for (const auto& [name, placement] : choice.in) {
    if (std::ranges::find(part.reads, name) == part.reads.end()) {
      throw std::invalid_argument(part.name + ": reads no tensor '" + name + "'");
    }
  }
  for (const std::string& name : part.reads.empty() ? part.writes : part.reads) {
    const Stream& stream = model.stream(name);
    const auto asked = choice.in.find(name);
    Layout layout = asked == choice.in.end() ? home(stream, documents)
                                             : placed(stream, documents, asked->second);
    // Rows of a line are neighbours where a rank has all of it.
    const auto along = std::ranges::find(layout.dims, part.along, &Dim::name);
    if (along != layout.dims.end() && (along->cuts.empty() || documents.ranks() == 1)) {
      layout = layout.along(part.along);
    }
    streams.emplace(name, std::move(layout));
  }
  return streams;
}

namespace {

// The last version of a stream while a timeline is built.
struct Version {
  Body maker;
  ValueId value = -1;

  [[nodiscard]] const Layout& layout() const { return maker->program.values[idx(value)].layout; }
};

// Puts parts one after the other, and moves between them.  Layers are alike, so each move is made
// once for a maker and a reader.
class Parts {
 public:
  Parts(bool keep, Messages messages) : keep_(keep), messages_(messages) {}

  // How a stream lies after the parts so far; null: none of them made it.
  [[nodiscard]] const Layout* lies(const std::string& stream) const {
    const auto found = now_.find(stream);
    return found == now_.end() ? nullptr : &found->second.layout();
  }

  void add(ScheduledPart part) {
    for (const Port& read : part.program().reads) {
      bring(read, part);
    }
    for (const Port& write : part.program().writes) {
      now_[write.stream] = {.maker = part.body, .value = write.value};
    }
    parts_.push_back(std::move(part));
  }
  [[nodiscard]] Timeline linked() && { return paradyse::linked(std::move(parts_)); }

 private:
  // Where the stream lies otherwise, it is moved.
  void bring(const Port& read, const ScheduledPart& reader) {
    const auto version = now_.find(read.stream);
    if (version == now_.end()) {
      return;
    }
    const Layout& wanted = reader.program().values[idx(read.value)].layout;
    const auto [known, fresh] =
        moves_.try_emplace({version->second.maker.get(), reader.body.get(), read.stream});
    if (fresh && !lie_alike(version->second.layout(), wanted, reader.program().ranks())) {
      known->second = scheduled_move(
                          read.stream,
                          version->second.layout(),
                          wanted,
                          reader.program().documents,
                          reader.program().domain,
                          keeping_of(reader))
                          .body;
    }
    if (known->second) {
      parts_.push_back({.layer = reader.layer, .body = known->second});
      version->second = {.maker = known->second, .value = 1};
    }
  }

  // Of a layer that is made again as a whole moves are part: what enters one may be what waits.
  [[nodiscard]] Keeping keeping_of(const ScheduledPart& reader) const {
    const bool whole = reader.schedule().with_layer();
    return {
        .keep = keep_,
        .offload = whole && reader.schedule().offload,
        .with_layer = whole,
        .messages = messages_};
  }

  bool keep_;
  Messages messages_;
  Timeline parts_;
  std::map<std::string, Version> now_;
  using Pair = std::tuple<const void*, const void*, std::string>;  // maker, reader, stream
  std::map<Pair, Body> moves_;                                     // null: it lies as it is wanted
};

}  // namespace

Task task_of(const Model& model, const std::string& part, Documents documents, int domain) {
  return task_of(model, model.part(part), std::move(documents), domain);
}

Task task_of(
    const Model& model, const std::shared_ptr<const Part>& part, Documents documents, int domain) {
  Layouts streams = streams_of(model, *part, {}, documents);
  return {
      .part = part,
      .streams = std::move(streams),
      .documents = std::move(documents),
      .domain = domain};
}

ScheduledPart scheduled_part(
    const Task& task, const PartChoice& choice, bool keep, Messages messages) {
  if (const std::vector<Misfit> wrong = misfits(task, choice); !wrong.empty()) {
    const Misfit& first = wrong.front();
    throw std::invalid_argument(
        choice.part + ": " + (first.option.empty() ? "'" + choice.strategy + "' " : "") +
        first.why);
  }
  const Strategy& runs = strategy(task.part->kind, choice.strategy);
  Task run = task;
  run.choice = choice;
  run.choice.strategy = runs.name;
  run.training = keep;
  return {
      .layer = 0,
      .body = body(
          runs.build(run),
          choice.recompute,
          {.keep = keep,
           .offload = choice.offload,
           .with_layer = choice.with_layer,
           .messages = messages})};
}

namespace {

// What a part of a layer is told; one outside of them is told nothing.
PartChoice choice_of(const ModelPart& part, std::span<const LayerChoice> layers) {
  return part.layer < 0 ? PartChoice{.part = part.part->name, .strategy = kEndStrategy}
                        : part_of(layers[idx(part.layer)], part.part->name);
}

// Of a model that is made of what a batch brings, a stream is made where its first reader wants it,
// and read as it lies where each rank has rows of its own, whole.  At home otherwise.
Layouts streams_of_end(
    const Model& model,
    std::size_t which,
    const Documents& documents,
    std::span<const LayerChoice> layers,
    const std::vector<bool>& needed,
    const Parts& before) {
  const Part& end = *model.parts[which].part;
  Layouts streams = streams_of(model, end, {}, documents);
  if (!model.of_samples()) {
    return streams;  // tokens are looked up, and scored, where documents are cut
  }
  for (auto& [name, layout] : streams) {
    if (!end.reads.empty()) {
      const Layout* now = before.lies(name);
      if (now != nullptr && is_partition(*now, documents.ranks()) && !now->cuts_columns()) {
        layout = *now;
      }
      continue;
    }
    for (std::size_t i = which + 1; i < model.parts.size(); ++i) {
      const Part& reader = *model.parts[i].part;
      if (needed[i] && std::ranges::find(reader.reads, name) != reader.reads.end()) {
        if (model.parts[i].layer >= 0) {
          const PartChoice choice = choice_of(model.parts[i], layers);
          layout = streams_of(model, reader, choice, documents).at(name);
        }
        break;
      }
    }
  }
  return streams;
}

}  // namespace

Timeline timeline(
    const Model& model,
    const Documents& documents,
    int domain,
    std::span<const LayerChoice> layers,
    bool keep,
    Messages messages) {
  BuiltParts built;  // layers are alike: each distinct choice is built once
  return timeline(model, documents, domain, layers, keep, messages, built);
}

Timeline timeline(
    const Model& model,
    const Documents& documents,
    int domain,
    std::span<const LayerChoice> layers,
    bool keep,
    Messages messages,
    BuiltParts& built) {
  if (static_cast<std::int64_t>(layers.size()) != model.layers) {
    throw std::invalid_argument(
        "a plan for " + std::to_string(layers.size()) + " layers does not fit a model of " +
        std::to_string(model.layers));
  }
  const std::vector<bool> needed = model.needed();
  Parts parts(keep, messages);
  for (std::size_t i = 0; i < model.parts.size(); ++i) {
    const auto& [layer, site, part] = model.parts[i];
    if (!needed[i]) {
      continue;
    }
    const PartChoice choice = choice_of(model.parts[i], layers);
    Body& made = built[{part.get(), choice}];
    const bool depends_on_layers = layer < 0 && model.of_samples();  // streams_of_end()
    if (!made || depends_on_layers) {
      const Task task{
          .part = part,
          .streams = layer < 0 ? streams_of_end(model, i, documents, layers, needed, parts)
                               : streams_of(model, *part, choice, documents),
          .documents = documents,
          .domain = domain};
      made = scheduled_part(task, choice, keep, messages).body;
    }
    parts.add({.layer = layer, .weights = static_cast<int>(i), .site = site, .body = made});
  }
  return std::move(parts).linked();
}

}  // namespace paradyse
