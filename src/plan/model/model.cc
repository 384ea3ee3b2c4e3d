#include "paradyse/plan/model.h"

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "paradyse/plan/index.h"

namespace paradyse {
namespace {

template <typename Named, typename NameOf>
[[noreturn]] void unknown(
    const std::string& what,
    const std::string& name,
    const std::vector<Named>& known,
    NameOf name_of) {
  std::string names;
  std::set<std::string> seen;
  for (const Named& one : known) {
    if (seen.insert(name_of(one)).second) {
      names.append(names.empty() ? "" : ", ").append(name_of(one));
    }
  }
  throw std::invalid_argument("the model has no " + what + " '" + name + "'; there are " + names);
}

}  // namespace

const Stream& Model::stream(const std::string& name) const {
  for (const Stream& one : streams) {
    if (one.name == name) {
      return one;
    }
  }
  unknown("stream", name, streams, [](const Stream& one) { return one.name; });
}

const std::shared_ptr<const Part>& Model::part(const std::string& name) const {
  for (const ModelPart& one : parts) {
    if (one.part->name == name) {
      return one.part;
    }
  }
  unknown("part", name, parts, [](const ModelPart& one) { return one.part->name; });
}

Model with_tiles(const Model& model, Tiles tiles) {
  Model other = model;
  std::map<const Part*, std::shared_ptr<const Part>> made;  // parts that layers share stay shared
  for (ModelPart& one : other.parts) {
    std::shared_ptr<const Part>& copy = made[one.part.get()];
    if (copy == nullptr) {
      Part part = *one.part;
      part.shape.tiles = tiles;
      copy = std::make_shared<const Part>(std::move(part));
    }
    one.part = copy;
  }
  return other;
}

std::vector<Stream> Model::inputs() const {
  std::vector<Stream> inputs;
  for (const ModelPart& one : parts) {
    const Part& part = *one.part;
    if (!part.input.empty()) {
      const Matrix matrix = part.weights(1).matrices.front();
      const Stream& rows = stream(part.reads.empty() ? part.writes.front() : part.reads.front());
      inputs.push_back(
          {.name = part.input,
           .rows = rows.rows,
           .columns = part.reads.empty() ? matrix.cols : matrix.rows,
           .home = ""});
    }
  }
  return inputs;
}

std::vector<bool> Model::needed() const {
  std::vector<bool> needed(parts.size());
  std::set<std::string> wanted;  // streams, by the parts that come later
  for (std::size_t i = parts.size(); i-- > 0;) {
    const Part& part = *parts[i].part;
    needed[i] = part.writes.empty();
    for (const std::string& stream : part.writes) {
      needed[i] = needed[i] || wanted.contains(stream);
    }
    if (needed[i]) {
      for (const std::string& stream : part.writes) {
        wanted.erase(stream);
      }
      wanted.insert(part.reads.begin(), part.reads.end());
    }
  }
  return needed;
}

std::int64_t stored_elements(const Model& model, int domain, int rank) {
  std::map<const Part*, std::int64_t> of_part;  // layers are alike
  std::int64_t elements = 0;
  for (const ModelPart& one : model.parts) {
    const auto [found, fresh] = of_part.try_emplace(one.part.get());
    if (fresh) {
      found->second = one.part->weights(domain).elements(rank);
    }
    elements += found->second;
  }
  return elements;
}

std::int64_t stored_elements(const ModelShape& model, int domain, int rank) {
  return stored_elements(text_model(model), domain, rank);
}

std::vector<Heads> own_heads(const PartShape& shape, int ranks, std::span<const double> shares) {
  const std::int64_t group = shape.heads / shape.kv_heads;  // query heads of one key/value head
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  double before = 0;
  std::vector<Heads> heads;
  for (std::int64_t r = 0; r < ranks; ++r) {
    Interval query{r * shape.heads / ranks, (r + 1) * shape.heads / ranks};
    if (!shares.empty()) {
      const auto edge = [&] {
        return std::llround(before / sum * static_cast<double>(shape.heads));
      };
      query.begin = edge();
      before += shares[idx(r)];
      query.end = edge();
    }
    const Interval key =
        query.empty() ? Interval{} : Interval{query.begin / group, (query.end - 1) / group + 1};
    heads.push_back({query, key});
  }
  return heads;
}

std::vector<Heads> all_heads(const PartShape& shape, int ranks) {
  return std::vector<Heads>(idx(ranks), Heads{{0, shape.heads}, {0, shape.kv_heads}});
}

}  // namespace paradyse
