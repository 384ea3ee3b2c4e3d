#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <span>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <ATen/Dispatch.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/transfer.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/text_match.h"
#include "src/run/device/cores.h"
#include "src/run/memory/host_store.h"
#include "src/run/weights/adapters.h"
#include "src/run/weights/head_bias.h"
#include "src/run/weights/names_in_files.h"
#include "src/run/weights/normal.h"
#include "src/run/weights/safetensors.h"

namespace paradyse {

ParameterTypes parameter_types(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return {.weight = at::kFloat, .gradient = at::kFloat};
    case Dtype::float64:
      return {.weight = at::kDouble, .gradient = at::kDouble};
    case Dtype::bfloat16:
      return {.weight = at::kBFloat16, .gradient = at::kFloat};
    case Dtype::float16:
      return {.weight = at::kHalf, .gradient = at::kFloat};
  }
  return {};
}

Parameters::Parameters(
    const Model& model,
    int domain,
    int domain_rank,
    ParameterTypes types,
    bool gradients,
    Masters masters,
    c10::Device device)
    : model_(model), domain_(domain), domain_rank_(domain_rank), types_(types), device_(device) {
  const auto make = [&](std::vector<std::int64_t> sizes, bool gradient) {
    const MemoryScope scope(
        gradient ? Category::gradients : Category::parameters,
        gradient ? "gradients" : "parameters");
    const auto options =
        at::TensorOptions().dtype(gradient ? types.gradient : types.weight).device(device);
    return gradient ? at::zeros(sizes, options) : at::empty(sizes, options);
  };
  const bool narrow = masters != Masters::none && types.weight != types.gradient;
  const auto make_master = [&](const at::Tensor& weight) {
    const MemoryScope scope(Category::optimizer, "master weights");
    return narrow && masters == Masters::on_device
               ? at::empty(weight.sizes(), weight.options().dtype(types.gradient))
               : weight;
  };
  for (const ModelPart& one : model_.parts) {
    PartParameters part;
    part.layer = one.layer;
    part.weights = one.part->weights(domain);
    const PartWeights& weights = part.weights;
    if (!weights.matrices.empty() && weights.matrices.front().tied) {
      part.stack = parts_.front().stack;
      part.stack_grad = parts_.front().stack_grad;
      part.stack_master = parts_.front().stack_master;
    } else if (!weights.matrices.empty()) {
      const std::int64_t elements = weights.stack().elements(domain_rank);
      part.stack = make({elements}, false);
      part.stack_master = weights.frozen ? part.stack : make_master(part.stack);
      if (gradients && !weights.frozen) {
        part.stack_grad = make({elements}, true);
      }
    }
    for (const Vector& vector : weights.vectors) {
      part.vectors.push_back(make({vector.size}, false));
      part.vector_masters.push_back(
          vector.frozen ? part.vectors.back() : make_master(part.vectors.back()));
      if (gradients) {
        part.vector_grads.push_back(vector.frozen ? at::Tensor() : make({vector.size}, true));
      }
    }
    parts_.push_back(std::move(part));
  }
  if (narrow && masters == Masters::on_host) {
    put_masters_on_host();
  }
}

void Parameters::put_masters_on_host() {
  const auto tied = [](const PartParameters& part) {
    return !part.weights.matrices.empty() && part.weights.matrices.front().tied;
  };
  std::vector<at::Tensor*> masters;
  std::vector<at::Tensor> weights;  // which they are still
  for (PartParameters& part : parts_) {
    if (part.stack.defined() && !tied(part) && !part.weights.frozen) {
      masters.push_back(&part.stack_master);
    }
    for (std::size_t v = 0; v < part.vector_masters.size(); ++v) {
      if (!part.weights.vectors[v].frozen) {
        masters.push_back(&part.vector_masters[v]);
      }
    }
  }
  weights.reserve(masters.size());
  for (const at::Tensor* master : masters) {
    weights.push_back(*master);
  }
  const auto like = at::TensorOptions().dtype(types_.gradient).device(device_);
  const std::vector<at::Tensor> own = host_zeros(weights, like, "float32 master weights");
  for (std::size_t i = 0; i < masters.size(); ++i) {
    *masters[i] = own[i];
  }
  for (PartParameters& part : parts_) {
    if (tied(part)) {
      part.stack_master = parts_.front().stack_master;
    }
  }
}

void Parameters::zero_gradients() {
  const c10::InferenceMode no_autograd;
  for (PartParameters& part : parts_) {
    if (part.stack_grad.defined()) {
      part.stack_grad.zero_();
    }
    for (const at::Tensor& grad : part.vector_grads) {
      if (grad.defined()) {
        grad.zero_();
      }
    }
  }
}

void Parameters::scale_gradients(double factor) {
  const c10::InferenceMode no_autograd;
  for (const PartParameters& part : parts_) {
    const auto& matrices = part.weights.matrices;
    if (part.stack_grad.defined() && !matrices.front().tied) {
      at::Tensor(part.stack_grad).mul_(factor);
    }
    for (const at::Tensor& grad : part.vector_grads) {
      if (grad.defined()) {
        at::Tensor(grad).mul_(factor);
      }
    }
  }
}

namespace {

// FNV-1a: gives each tensor a stream of its own.
std::uint64_t stream(const std::string& name) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return hash;
}

// The rank's rows of matrix m inside its stack.
at::Tensor local_rows(
    const PartParameters& part, std::size_t m, int rank, const at::Tensor& stack) {
  const PartWeights& weights = part.weights;
  const Interval here = weights.elements_of(m, rank);
  return stack.narrow(0, here.begin, here.size()).view({-1, weights.matrices[m].cols});
}

Interval global_rows(const Matrix& matrix, int rank) {
  const Piece& piece = matrix.cuts[idx(rank)];
  return piece.empty() ? Interval{} : piece.front();
}

std::string full_name(const PartParameters& part, const std::string& name) {
  return layer_prefix(part.weights, part.layer) + name;
}

std::vector<std::int64_t> stored_shape(const Matrix& matrix) {
  if (!matrix.stored_shape.empty()) {
    return matrix.stored_shape;
  }
  const std::int64_t rows = matrix.stored_rows > 0 ? matrix.stored_rows : matrix.rows;
  return matrix.transposed ? std::vector<std::int64_t>{matrix.cols, rows}
                           : std::vector<std::int64_t>{rows, matrix.cols};
}

// Calls body(run, where it is among all of them one after the other) for each.
template <typename Body>
void for_runs(const std::vector<Interval>& stored, Body body) {
  std::int64_t own = 0;
  for (const Interval rows : stored) {
    body(rows, Interval{own, own + rows.size()});
    own += rows.size();
  }
}

// Runs of `all` from or to `own`, which has them one after the other.
void copy_runs(
    const std::vector<Interval>& runs, const at::Tensor& own, const at::Tensor& all, bool store) {
  for_runs(runs, [&](Interval there, Interval here) {
    at::Tensor mine = own.narrow(0, here.begin, here.size());
    at::Tensor its = all.narrow(0, there.begin, there.size());
    (store ? its : mine).copy_(store ? mine : its);
  });
}

// Rows of the matrix from or to the tensor that stores it.
void copy_rows(
    const Matrix& matrix,
    Interval some,
    const at::Tensor& own,
    const at::Tensor& stored,
    bool store) {
  copy_runs(matrix.stored(some), own, matrix.transposed ? stored.t() : stored.flatten(1), store);
}

std::vector<std::int64_t> stored_shape(const Vector& vector) {
  if (vector.stored_rows == 0) {
    return {vector.size};
  }
  return vector.columns == 0 ? std::vector<std::int64_t>{vector.stored_rows}
                             : std::vector<std::int64_t>{vector.stored_rows, vector.columns};
}

// Elements of the stored tensor, row by row.
Interval stored_elements(const Vector& vector) {
  const std::int64_t begin = vector.first * std::max<std::int64_t>(1, vector.columns);
  return {begin, begin + vector.size};
}

// Runs of them, in the order of the vector's own.
std::vector<Interval> stored_runs(const Vector& vector) {
  return vector.stored_at.empty() ? Piece{stored_elements(vector)} : vector.stored_at;
}

// The vector from or to the tensor that stores it.
void copy_elements(
    const Vector& vector, const at::Tensor& own, const at::Tensor& stored, bool store) {
  copy_runs(stored_runs(vector), own, stored.view({-1}), store);
}

// Which tensors that store several vectors are complete, as one vector after the other comes.
class Complete {
 public:
  bool with(const std::string& name, const Vector& vector) {
    if (vector.stored_rows == 0) {
      return true;
    }
    const std::int64_t all = vector.stored_rows * std::max<std::int64_t>(1, vector.columns);
    return (there_[name] += vector.size) == all;
  }

 private:
  std::map<std::string, std::int64_t> there_;
};

// A tensor that stores several matrices begins with the first of them and is complete with the
// last.
bool begins(const PartWeights& weights, std::size_t m) {
  return m == 0 || weights.matrices[m - 1].stored_as != weights.matrices[m].stored_as;
}
bool completes(const PartWeights& weights, std::size_t m) {
  return m + 1 == weights.matrices.size() ||
         weights.matrices[m + 1].stored_as != weights.matrices[m].stored_as;
}

// Ranks of this process that draw their weights now; they share its cores.
std::atomic<int> ranks_drawing{0};
class Drawing {
 public:
  Drawing() { ranks_drawing.fetch_add(1); }
  ~Drawing() { ranks_drawing.fetch_sub(1); }
  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;
};

// Where the numbers of a matrix come from.
struct Draws {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t first = 0;  // of the stream
  double deviation = 1;
  Begin distribution = Begin::normal;

  [[nodiscard]] double number(float drawn) const {
    switch (distribution) {
      case Begin::truncated:
        return truncated_from(drawn) * deviation;
      case Begin::uniform:
        return uniform_from(drawn) * deviation;
      case Begin::zero:
        return 0;
      case Begin::normal:
        break;
    }
    return drawn * deviation;
  }

  template <typename T>
  void fill(std::size_t begin, std::span<T> out) const {
    std::array<float, 1024> numbers{};
    for (std::size_t done = 0; done < out.size(); done += numbers.size()) {
      const std::size_t count = std::min(numbers.size(), out.size() - done);
      draw_normal(seed, stream, first + begin + done, std::span(numbers).first(count));
      for (std::size_t i = 0; i < count; ++i) {
        out[done + i] = static_cast<T>(static_cast<float>(number(numbers[i])));
      }
    }
  }

  // By this rank's share of the cores.
  template <typename T>
  void fill_by_threads(std::span<T> out) const {
    constexpr std::size_t kPiece = std::size_t{1} << 16;  // half a millisecond
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t begin = next.fetch_add(kPiece); begin < out.size();
           begin = next.fetch_add(kPiece)) {
        fill(begin, out.subspan(begin, std::min(kPiece, out.size() - begin)));
      }
    };
    const std::size_t share = idx(std::max(1, usable_cores() / ranks_drawing.load()));
    const std::size_t threads = std::min(share, out.size() / kPiece + 1);
    std::vector<std::jthread> others;
    others.reserve(threads);
    try {
      while (others.size() + 1 < threads) {
        others.emplace_back(work);
      }
    } catch (const std::system_error&) {  // no more threads: those that there are do it
    }
    work();
  }
};

}  // namespace

void Parameters::initialize_vectors(std::uint64_t seed, bool adapters_alone) {
  for (PartParameters& part : parts_) {
    for (std::size_t v = 0; v < part.vectors.size(); ++v) {
      const Vector& vector = part.weights.vectors[v];
      if (adapters_alone && !vector.of_adapter()) {
        continue;
      }
      part.vector_masters[v].fill_(vector.initial);
      if (vector.deviation > 0) {
        const Draws draws{
            .seed = seed,
            .stream = stream(full_name(part, vector.name)),
            .first = static_cast<std::uint64_t>(stored_elements(vector).begin),
            .deviation = vector.deviation,
            .distribution = vector.begin};
        std::vector<float> numbers(idx(vector.size));
        draws.fill(0, std::span(numbers));
        part.vector_masters[v].add_(at::tensor(numbers).to(part.vector_masters[v].device()));
      }
    }
  }
}

void Parameters::initialize_adapters(std::uint64_t seed) {
  const c10::InferenceMode no_autograd;
  initialize_vectors(seed, /*adapters_alone=*/true);
  round_masters();
}

void Parameters::initialize(std::uint64_t seed) {
  const c10::InferenceMode no_autograd;
  const Drawing drawing;
  initialize_vectors(seed, /*adapters_alone=*/false);
  for (PartParameters& part : parts_) {
    const auto& matrices = part.weights.matrices;
    for (std::size_t m = 0; m < matrices.size(); ++m) {
      if (matrices[m].tied) {
        continue;
      }
      const at::Tensor own = local_rows(part, m, domain_rank_, part.stack_master);
      if (matrices[m].begin == Begin::zero) {
        at::Tensor(own).zero_();
        continue;
      }
      // Drawn on the host: the same numbers on every device.
      const at::Tensor rows =
          own.is_cpu() ? own : at::empty(own.sizes(), own.options().device(at::kCPU));
      const Interval global = global_rows(matrices[m], domain_rank_);
      const std::int64_t cols = matrices[m].cols;
      for_runs(matrices[m].stored(global), [&](Interval there, Interval here) {
        const Draws draws{
            .seed = seed,
            .stream = stream(full_name(part, matrices[m].stored_as)),
            .first = static_cast<std::uint64_t>(there.begin) * static_cast<std::uint64_t>(cols),
            .deviation = matrices[m].deviation > 0 ? matrices[m].deviation
                                                   : model_.initializer_range * matrices[m].scale,
            .distribution = matrices[m].begin};
        AT_DISPATCH_FLOATING_TYPES_AND2(
            at::kBFloat16, at::kHalf, rows.scalar_type(), "initialize", [&] {
              draws.fill_by_threads(std::span(rows.mutable_data_ptr<scalar_t>(), idx(rows.numel()))
                                        .subspan(idx(here.begin * cols), idx(here.size() * cols)));
            });
      });
      if (!own.is_cpu()) {
        own.copy_(rows);
      }
    }
  }
  round_masters();
}

void Parameters::round_masters() {
  const c10::InferenceMode no_autograd;
  for (const PartParameters& part : parts_) {
    if (part.stack.defined() && !part.stack.is_same(part.stack_master)) {
      at::Tensor(part.stack).copy_(part.stack_master);
    }
    for (std::size_t v = 0; v < part.vectors.size(); ++v) {
      if (!part.vectors[v].is_same(part.vector_masters[v])) {
        at::Tensor(part.vectors[v]).copy_(part.vector_masters[v]);
      }
    }
  }
}

std::vector<std::string> names_in_files(const std::string& name, const OtherNames& other) {
  std::vector<std::string> names = {name};
  for (const auto& [now, before] : other.older) {
    if (const std::size_t at = name.find(now); at != std::string::npos) {
      names.push_back(std::string(name).replace(at, now.size(), before));
    }
  }
  for (const auto& [now, before] :
       {std::pair<std::string, std::string>{".LayerNorm.weight", ".LayerNorm.gamma"},
        std::pair<std::string, std::string>{".LayerNorm.bias", ".LayerNorm.beta"}}) {
    if (name.ends_with(now)) {
      names.push_back(name.substr(0, name.size() - now.size()) + before);
    }
  }
  for (std::size_t i = 0, count = names.size(); i < count; ++i) {
    names.push_back(names[i].substr(names[i].find('.') + 1));
  }
  return names;
}

namespace {

// Tables and masks that files hold and no loss depends on.
bool is_buffer(const std::string& name) {
  static const char* const kParts[] = {
      "rotary_emb.inv_freq",
      "attn.masked_bias",
      "attention.masked_bias",
      "embeddings.position_ids",
      "embeddings.token_type_ids"};
  // Of GPT-2 and GPT-NeoX; the biases of their attention have the names of its products.
  const bool mask = name.ends_with(".attn.bias") || name.ends_with(".attention.bias");
  return mask || std::any_of(std::begin(kParts), std::end(kParts), [&](const char* part) {
           return name.find(part) != std::string::npos;
         });
}

// Of a head for another task, which training a language model does not touch.
bool is_other_head(const std::string& name) {
  static const char* const kParts[] = {
      "pooler.dense.", "cls.seq_relationship.", "multiple_choice_head."};
  static const char* const kFirst[] = {
      "score.",
      "classifier.",
      "pre_classifier.",
      "qa_outputs.",
      "v_head.",
      "value_head.",
      "reward_head."};
  const auto first = [&](const char* part) { return name.starts_with(part); };
  return std::any_of(std::begin(kFirst), std::end(kFirst), first) ||
         std::any_of(std::begin(kParts), std::end(kParts), [&](const char* part) {
           return name.find(part) != std::string::npos;
         });
}

}  // namespace

StoredWeights stored_weights(const SafetensorsReader& reader, const Model& model) {
  StoredWeights found;
  const auto called = [&](const std::string& name) {
    return names_in_files(name, model.other_names);
  };
  std::map<std::string, StoredTensor> unused = reader.tensors();
  const auto there = [&](const std::string& name) { return reader.contains(name); };
  const auto first_of = [&](const std::vector<std::string>& names) {
    const auto one = std::find_if(names.begin(), names.end(), there);
    return one == names.end() ? names.front() : *one;
  };
  const auto find = [&](const std::string& wanted,
                        const std::vector<std::string>& names,
                        const std::vector<std::int64_t>& shape) {
    const std::string name = first_of(names);
    const std::string file = reader.file_of(name).string();
    if (!there(name)) {
      std::vector<std::string> all;
      for (const auto& [each, stored] : reader.tensors()) {
        all.push_back(each);
      }
      throw std::runtime_error(fmt::format(
          "{}: has no tensor \"{}\"{} among its {}; is config.json that of another model, or are "
          "files missing?{}",
          file,
          wanted,
          did_you_mean(wanted, all),
          all.size(),
          std::ranges::any_of(
              std::array{"lm_head.", "cls.", "vocab_", "embed_out.", "head.", "decoder."},
              [&](const char* begin) {
                return model.family == "text" && wanted.starts_with(begin);
              })
              ? " A model without its head (AutoModel) is saved so: save it with the head "
                "(AutoModelForCausalLM, of BERT and its relatives AutoModelForMaskedLM)"
              : ""));
    }
    const StoredTensor& stored = reader.tensors().at(name);
    const bool real = stored.dtype == at::kDouble || stored.dtype == at::kFloat ||
                      stored.dtype == at::kHalf || stored.dtype == at::kBFloat16;
    if (!real) {
      throw std::runtime_error(fmt::format(
          "{}: {} is stored as {}; expected F64, F32, F16 or BF16: quantized weights are to be "
          "dequantized first",
          file,
          name,
          c10::toString(stored.dtype)));
    }
    if (stored.shape != shape) {
      throw std::runtime_error(fmt::format(
          "{}: {} has shape [{}], the configuration asks for [{}]; is config.json that of another "
          "model?",
          file,
          name,
          fmt::join(stored.shape, ", "),
          fmt::join(shape, ", ")));
    }
    found.names[wanted] = name;
    unused.erase(name);
  };
  // The tied copy is the embedding where that itself is not stored.
  std::vector<std::string> head;
  for (const ModelPart& one : model.parts) {
    const PartWeights weights = one.part->weights(1);
    if (!weights.matrices.empty() && weights.matrices.front().tied) {
      head = called(layer_prefix(weights, one.layer) + weights.matrices.front().stored_as);
    }
  }
  for (const ModelPart& one : model.parts) {
    const PartWeights weights = one.part->weights(1);
    const std::string prefix = layer_prefix(weights, one.layer);
    for (const Vector& vector : weights.vectors) {
      if (vector.of_adapter()) {
        continue;  // files of their own have them
      }
      const std::string name = prefix + vector.name;
      std::vector<std::string> names = called(name);
      if (const HeadBias* const twice = head_bias(name)) {
        names = called(twice->own);
        const std::vector<std::string> beside = called(twice->beside);
        names.insert(names.end(), beside.begin(), beside.end());
        if (name == twice->own && !there(first_of(called(name)))) {
          found.notes.push_back(fmt::format(
              "{}: {} is missing: using {}",
              reader.file_of(name).string(),
              twice->own,
              first_of(names)));
        }
        const std::string own = first_of(called(twice->own));
        const std::string other = first_of(beside);
        if (there(own) && there(other)) {
          if (name == twice->beside && !at::equal(reader.view(own), reader.view(other))) {
            found.notes.push_back(fmt::format(
                "{}: {} and {} differ: the first is used, as Transformers 5 does",
                reader.file_of(own).string(),
                own,
                other));
          }
          unused.erase(other);
        }
      }
      if (!found.names.contains(name)) {
        find(name, names, stored_shape(vector));
      }
    }
    for (std::size_t m = 0; m < weights.matrices.size(); ++m) {
      const Matrix& matrix = weights.matrices[m];
      const std::string name = prefix + matrix.stored_as;
      if (matrix.tied) {
        unused.erase(first_of(called(name)));  // some files hold the tied copy as well
        continue;
      }
      std::vector<std::string> names = called(name);
      if (&one == &model.parts.front() && m == 0 && !there(first_of(names)) && !head.empty() &&
          there(first_of(head))) {
        found.notes.push_back(fmt::format(
            "{}: {} is missing: using {}, which is tied to it, for both",
            reader.file_of(first_of(head)).string(),
            name,
            first_of(head)));
        names = head;
      }
      if (!found.names.contains(name)) {  // a tensor may store several matrices
        find(name, names, stored_shape(matrix));
      }
    }
  }
  std::vector<std::string> read;
  std::vector<std::string> not_read;
  for (const std::string& name : reader.not_in_index()) {
    const bool used =
        std::ranges::any_of(found.names, [&](const auto& one) { return one.second == name; });
    if (used) {
      read.push_back(name);
    } else if (unused.erase(name) > 0) {
      not_read.push_back(name);
    }
  }
  const auto note_of = [&](const std::vector<std::string>& names, const char* what) {
    if (!names.empty()) {
      found.notes.push_back(fmt::format(
          "{}: has {}{}, which the index does not name: {}",
          reader.file_of(names.front()).string(),
          names.front(),
          names.size() == 1 ? "" : fmt::format(" and {} more", names.size() - 1),
          what));
    }
  };
  note_of(read, "read like the others, as Transformers 5 does");
  note_of(not_read, "not read, since no part of this model uses it");
  for (const auto& [name, stored] : unused) {
    const bool of_others = std::ranges::any_of(
        model.other_names.unused,
        [&](const std::string& begin) { return name.starts_with(begin); });
    if (of_others || is_other_head(name)) {
      found.unused.push_back(name);
    } else if (!is_buffer(name)) {
      throw std::runtime_error(fmt::format(
          "{}: holds {}, which no part of this model uses; is config.json that of another model?",
          reader.file_of(name).string(),
          name));
    }
  }
  return found;
}

void Parameters::load(const SafetensorsReader& reader) {
  const c10::InferenceMode no_autograd;
  const StoredWeights stored = stored_weights(reader, model_);
  const auto take = [&](const std::string& name) { return reader.view(stored.names.at(name)); };
  for (PartParameters& part : parts_) {
    const PartWeights& weights = part.weights;
    for (std::size_t v = 0; v < weights.vectors.size(); ++v) {
      const Vector& vector = weights.vectors[v];
      if (!vector.of_adapter()) {
        copy_elements(
            vector, part.vector_masters[v], take(full_name(part, vector.name)), /*store=*/false);
      }
    }
    for (std::size_t m = 0; m < weights.matrices.size(); ++m) {
      const Matrix& matrix = weights.matrices[m];
      if (matrix.tied) {
        continue;
      }
      copy_rows(
          matrix,
          global_rows(matrix, domain_rank_),
          local_rows(part, m, domain_rank_, part.stack_master),
          take(full_name(part, matrix.stored_as)),
          /*store=*/false);
    }
  }
  round_masters();
}

void Parameters::load_adapters(const SafetensorsReader& reader) {
  const c10::InferenceMode no_autograd;
  const StoredAdapters stored = stored_adapters(reader, model_);
  for (PartParameters& part : parts_) {
    for (std::size_t v = 0; v < part.weights.vectors.size(); ++v) {
      const Vector& vector = part.weights.vectors[v];
      const auto found = stored.names.find(full_name(part, vector.name));
      if (found != stored.names.end()) {
        copy_elements(vector, part.vector_masters[v], reader.view(found->second), /*store=*/false);
      }
    }
  }
  round_masters();
}

void Parameters::merge_adapters() {
  const c10::InferenceMode no_autograd;
  for (PartParameters& part : parts_) {
    const auto& matrices = part.weights.matrices;
    for (std::size_t m = 0; m < matrices.size(); ++m) {
      const Matrix::Adapter& adapter = matrices[m].adapter;
      const Interval rows = global_rows(matrices[m], domain_rank_);
      if (adapter.a < 0 || rows.empty()) {
        continue;
      }
      const std::int64_t r = part.weights.vectors[idx(adapter.a)].stored_rows;
      // In float64, rounded once.
      at::Tensor a = part.vector_masters[idx(adapter.a)].view({r, -1}).to(at::kDouble);
      at::Tensor b = part.vector_masters[idx(adapter.b)].view({-1, r}).to(at::kDouble);
      at::Tensor& cut = adapter.output ? a : b;
      cut = cut.narrow(adapter.output ? 1 : 0, adapter.first + rows.begin, rows.size());
      const at::Tensor added = at::matmul(b, a);  // [outputs, inputs]
      const at::Tensor own = local_rows(part, m, domain_rank_, part.stack);
      own.copy_(own.to(at::kDouble).add(adapter.output ? added.t() : added, adapter.scale));
    }
  }
}

std::vector<WeightPiece> pieces(const Parameters& parameters) {
  std::vector<WeightPiece> all;
  for (const PartParameters& part : parameters.parts()) {
    const PartWeights& weights = part.weights;
    for (std::size_t m = 0; m < weights.matrices.size(); ++m) {
      const Matrix& matrix = weights.matrices[m];
      const Interval rows = global_rows(matrix, parameters.domain_rank());
      if (!matrix.tied && !weights.frozen && rows.size() > 0) {
        const std::int64_t begin = weights.elements_of(m, parameters.domain_rank()).begin;
        for_runs(matrix.stored(rows), [&](Interval there, Interval here) {
          all.push_back(
              {.name = full_name(part, matrix.stored_as),
               .shape = stored_shape(matrix),
               .transposed = matrix.transposed,
               .rows = there,
               .master = part.stack_master,
               .here = {begin + here.begin * matrix.cols, begin + here.end * matrix.cols},
               .sizes = {there.size(), matrix.cols}});
        });
      }
    }
    for (std::size_t v = 0; v < weights.vectors.size(); ++v) {
      const Vector& vector = weights.vectors[v];
      if (vector.frozen) {
        continue;
      }
      const std::int64_t columns = std::max<std::int64_t>(1, vector.columns);
      for_runs(stored_runs(vector), [&](Interval there, Interval here) {
        const Interval rows{there.begin / columns, there.end / columns};
        all.push_back(
            {.name = full_name(part, vector.name),
             .shape = stored_shape(vector),
             .rows = rows,
             .master = part.vector_masters[v],
             .here = here,
             .sizes = vector.columns > 0 ? std::vector<std::int64_t>{rows.size(), vector.columns}
                                         : std::vector<std::int64_t>{rows.size()}});
      });
    }
  }
  return all;
}

namespace {

bool is_of(Which which, bool frozen, bool adapter) {
  return which == Which::weights || (which == Which::base ? !adapter : !frozen);
}

}  // namespace

void collect(
    const Parameters& parameters,
    Which which,
    Communicator& domain,
    const std::function<void(const std::string& name, const at::Tensor& tensor)>& take,
    bool masters) {
  const c10::InferenceMode no_autograd;
  const bool first = domain.rank() == 0;
  Complete complete;
  std::map<std::string, at::Tensor> begun;  // tensors that store several vectors
  for (const PartParameters& part : parameters.parts()) {
    const PartWeights& weights = part.weights;
    // masters may be in host memory, and exchanges are made where the weights are
    const at::Tensor stack = which == Which::gradients || !part.stack.defined() ? part.stack_grad
                             : masters ? part.stack_master.to(part.stack.device())
                                       : part.stack;
    at::Tensor stored;  // the whole tensor that matrices are put together in
    for (std::size_t m = 0; m < weights.matrices.size(); ++m) {
      const Matrix& matrix = weights.matrices[m];
      if (matrix.tied || !is_of(which, weights.frozen, /*adapter=*/false)) {
        continue;
      }
      const Extent whole{matrix.rows, matrix.cols};
      const Layout pieces = paradyse::matrix("rows", whole, matrix.cuts);
      Cuts to_first(idx(domain.size()));
      append(to_first[0], {0, matrix.rows});
      const Transfer table = transfer(pieces, pieces.cut("rows", to_first), domain.size());
      const at::Tensor together = at::empty({first ? whole.rows : 0, whole.cols}, stack.options());
      domain
          .exchange(
              local_rows(part, m, domain.rank(), stack),
              together,
              table,
              {.op = "collect", .part = weights.part, .layer = part.layer})
          ->wait();
      if (!first) {
        continue;
      }
      if (matrix.stored_rows == 0) {
        stored =
            matrix.transposed ? together.t().contiguous() : together.view(stored_shape(matrix));
      } else {
        if (begins(weights, m)) {
          stored = at::empty(stored_shape(matrix), stack.options());
        }
        copy_rows(matrix, {0, matrix.rows}, together, stored, /*store=*/true);
      }
      if (completes(weights, m)) {
        take(full_name(part, matrix.stored_as), stored.cpu());
      }
    }
    const auto& vectors = which == Which::gradients ? part.vector_grads
                          : masters                 ? part.vector_masters
                                                    : part.vectors;
    for (std::size_t v = 0; first && v < vectors.size(); ++v) {
      const Vector& vector = weights.vectors[v];
      if (!is_of(which, vector.frozen, vector.of_adapter())) {
        continue;
      }
      const std::string name = full_name(part, vector.name);
      if (vector.stored_rows == 0 && vector.stored_at.empty()) {
        take(name, vectors[v].cpu());
        continue;
      }
      at::Tensor& whole = begun[name];
      if (!whole.defined()) {
        whole = at::empty(stored_shape(vector), vectors[v].options());
      }
      copy_elements(vector, vectors[v], whole, /*store=*/true);
      if (complete.with(name, vector)) {
        take(name, whole.cpu());
        begun.erase(name);
      }
    }
  }
}

std::vector<std::pair<std::string, std::vector<std::int64_t>>> parameter_shapes(
    const Model& model, Which which) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes;
  Complete complete;
  for (const ModelPart& one : model.parts) {
    const PartWeights weights = one.part->weights(1);
    const std::string prefix = layer_prefix(weights, one.layer);
    for (std::size_t m = 0; m < weights.matrices.size(); ++m) {
      const Matrix& matrix = weights.matrices[m];
      if (!matrix.tied && is_of(which, weights.frozen, /*adapter=*/false) &&
          completes(weights, m)) {
        shapes.emplace_back(prefix + matrix.stored_as, stored_shape(matrix));
      }
    }
    for (const Vector& vector : weights.vectors) {
      if (is_of(which, vector.frozen, vector.of_adapter()) &&
          complete.with(prefix + vector.name, vector)) {
        shapes.emplace_back(prefix + vector.name, stored_shape(vector));
      }
    }
  }
  return shapes;
}

}  // namespace paradyse
