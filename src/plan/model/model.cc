#include "paradyse/plan/model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"

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

double PartShape::scale_of_scores() const {
  return score_scale > 0 ? score_scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

const Stream& Model::stream(const std::string& called) const {
  for (const Stream& one : streams) {
    if (one.name == called) {
      return one;
    }
  }
  unknown("stream", called, streams, [](const Stream& one) { return one.name; });
}

const std::shared_ptr<const Part>& Model::part(const std::string& called) const {
  for (const ModelPart& one : parts) {
    if (one.part->name == called) {
      return one.part;
    }
  }
  unknown("part", called, parts, [](const ModelPart& one) { return one.part->name; });
}

std::vector<Stack> Model::stacks() const {
  std::vector<Stack> stacks;
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    Stack one{.first = parts[begin].layer, .layers = 1};
    for (end = begin; end < parts.size() && parts[end].layer == one.first; ++end) {
      one.parts.push_back(parts[end].part);
    }
    if (one.first < 0) {
      continue;
    }
    if (!stacks.empty() && stacks.back().parts == one.parts) {
      ++stacks.back().layers;
    } else {
      stacks.push_back(std::move(one));
    }
  }
  return stacks;
}

std::int64_t Model::period() const {
  std::vector<std::vector<const Part*>> by_layer(idx(layers));
  for (const ModelPart& one : parts) {
    if (one.layer >= 0) {
      by_layer.at(idx(one.layer)).push_back(one.part.get());
    }
  }
  const auto alike = [](const Part* a, const Part* b) { return a->name == b->name; };
  for (const std::vector<const Part*>& layer : by_layer) {
    if (!std::ranges::equal(layer, by_layer.front(), alike)) {
      return 1;
    }
  }
  // Parts of one shape may differ in a norm, as a first layer's.
  const auto same = [](const std::vector<const Part*>& a, const std::vector<const Part*>& b) {
    return std::ranges::equal(a, b, [](const Part* x, const Part* y) {
      return x == y || (x->kind == y->kind && x->shape == y->shape);
    });
  };
  std::int64_t period = 1;
  while (period < layers && !std::equal(
                                by_layer.begin() + period,
                                by_layer.end(),
                                by_layer.begin(),
                                by_layer.end() - period,
                                same)) {
    ++period;
  }
  return std::max<std::int64_t>(1, std::min(period, layers));
}

std::vector<Stream> Model::inputs() const {
  std::vector<Stream> inputs;
  for (const ModelPart& one : parts) {
    const Part& part = *one.part;
    if (!part.input.empty()) {
      const std::vector<Matrix> matrices = part.weights(1).matrices;
      // Products of successive columns are added up; else the first product is the input's.
      std::int64_t columns = matrices.front().cols + part.shape.added;
      for (std::size_t m = 1; part.kind == kProjection && m < matrices.size(); ++m) {
        columns += matrices[m].cols;
      }
      const Stream& rows = stream(part.reads.empty() ? part.writes.front() : part.reads.front());
      inputs.push_back(
          {.name = part.input,
           .rows = rows.rows,
           .columns = part.writes.empty() ? matrices.front().rows : columns,
           .home = ""});
    }
  }
  for (const Stream& one : streams) {
    if (!one.mask.empty()) {
      inputs.push_back({.name = one.mask, .rows = one.rows, .columns = 1, .home = ""});
    }
  }
  return inputs;
}

bool Model::is_mask(const std::string& input) const {
  return !input.empty() && std::ranges::find(streams, input, &Stream::mask) != streams.end();
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

bool Model::of_samples() const {
  return std::ranges::any_of(parts, [](const ModelPart& one) { return !one.part->input.empty(); });
}

bool Model::has_dim(const std::string& dim) const {
  return std::ranges::any_of(
      streams, [&](const Stream& one) { return std::ranges::count(one.rows, dim) > 0; });
}

std::int64_t Model::rows(const DimSizes& dims) const {
  std::int64_t rows = 1;
  for (const std::string& dim : streams.front().rows) {
    rows *= dim == "batch" ? 1 : dims.at(dim);
  }
  return rows;
}

PartShape Model::typical_part() const {
  const std::vector<Stack> all = stacks();
  const Stack most =
      all.empty() ? Stack{.first = -1} : *std::ranges::max_element(all, {}, &Stack::layers);
  const auto first = [&](auto wanted) -> const Part* {
    const auto found = std::ranges::find_if(
        parts, [&](const ModelPart& one) { return one.layer == most.first && wanted(*one.part); });
    return found == parts.end() ? nullptr : found->part.get();
  };
  const Part* const attention = first([](const Part& part) { return part.shape.heads > 0; });
  const Part* const mlp = first([](const Part& part) { return part.shape.ffn > 0; });
  PartShape typical = attention != nullptr ? attention->shape : parts.front().part->shape;
  typical.ffn = mlp != nullptr ? mlp->shape.ffn : typical.ffn;
  return typical;
}

bool Model::tied() const {
  return std::ranges::any_of(parts.back().part->weights(1).matrices, &Matrix::tied);
}

namespace {

// The sum of `count` over all parts.
template <typename Count>
std::int64_t sum_over_parts(const Model& model, int domain, Count count) {
  std::map<const Part*, std::int64_t> of_part;  // layers are alike
  std::int64_t sum = 0;
  for (const ModelPart& one : model.parts) {
    const auto [found, fresh] = of_part.try_emplace(one.part.get());
    if (fresh) {
      found->second = count(one.part->weights(domain));
    }
    sum += found->second;
  }
  return sum;
}

std::int64_t vector_elements(const Model& model, bool frozen) {
  return sum_over_parts(model, 1, [&](const PartWeights& weights) {
    std::int64_t elements = 0;
    for (const Vector& vector : weights.vectors) {
      elements += vector.frozen && !frozen ? 0 : vector.size;
    }
    return elements;
  });
}

}  // namespace

std::int64_t stored_elements(const Model& model, int domain, int rank) {
  return sum_over_parts(
      model, domain, [&](const PartWeights& weights) { return weights.elements(rank); });
}

std::int64_t trained_elements(const Model& model, int domain, int rank) {
  return sum_over_parts(
      model, domain, [&](const PartWeights& weights) { return weights.trained_elements(rank); });
}

std::int64_t vector_elements(const Model& model) { return vector_elements(model, true); }

std::int64_t trained_vector_elements(const Model& model) { return vector_elements(model, false); }

std::int64_t matrix_elements(const Model& model) {
  return stored_elements(model, 1, 0) - vector_elements(model);
}

std::int64_t trained_matrix_elements(const Model& model) {
  return trained_elements(model, 1, 0) - trained_vector_elements(model);
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
