// The weights of one rank, in the one layout (part_weights.h), with their gradients; and their way
// from and to Hugging Face folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/model_folder.h"
#include "paradyse/run/communicator.h"

namespace paradyse {

class SafetensorsReader;

// What a rank stores of one part.  A tied head shares the embedding's stack.
struct PartParameters {
  std::int64_t layer = -1;  // as ModelPart has it
  PartWeights weights;
  at::Tensor stack;       // [elements of this rank]: matrix after matrix
  at::Tensor stack_grad;  // the same shape, statistic type; undefined without gradients, or frozen
  std::vector<at::Tensor> vectors;
  std::vector<at::Tensor> vector_grads;  // of those that are frozen undefined
  // What is trained: the weights themselves, or, where they are narrow, their float32 masters.
  // Of what is frozen the weights.
  at::Tensor stack_master;
  std::vector<at::Tensor> vector_masters;
};

// How the model is stored.
struct ParameterTypes {
  at::ScalarType weight = at::kFloat;    // what ops read
  at::ScalarType gradient = at::kFloat;  // what gradients are summed in
};
// Gradients of narrow weights are float32.
ParameterTypes parameter_types(Dtype dtype);

// The float32 weights that an optimizer updates beside narrow ones (Micikevicius et al. 2018).
enum class Masters { none, on_device, on_host };  // on_host: in host memory (host_store.h)

class Parameters {
 public:
  // Allocates, uninitialised, what rank `domain_rank` of `domain` stores; gradients zero.
  // `device`: where they lie, and where ops compute with them.
  Parameters(
      const Model& model,
      int domain,
      int domain_rank,
      ParameterTypes types,
      bool gradients,
      Masters masters = Masters::none,
      c10::Device device = c10::Device(c10::kCPU));

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] int domain() const { return domain_; }
  [[nodiscard]] int domain_rank() const { return domain_rank_; }
  [[nodiscard]] ParameterTypes types() const { return types_; }
  [[nodiscard]] c10::Device device() const { return device_; }
  // In the order of Model::parts.
  std::vector<PartParameters>& parts() { return parts_; }
  [[nodiscard]] const std::vector<PartParameters>& parts() const { return parts_; }

  void zero_gradients();
  void scale_gradients(double factor);
  // Rounds the masters into the weights that ops read.
  void round_masters();

  // As transformers does: matrices normal with the model's initializer_range (times their scale),
  // norms one, biases zero.  A function of (seed, name, row) alone: the same on every rank and for
  // every number of ranks.
  void initialize(std::uint64_t seed);
  // The adapters alone (lora.h), of which it begins with the same numbers.
  void initialize_adapters(std::uint64_t seed);

  // Copies this rank's slices from Hugging Face tensors, found as stored_weights() finds them.
  void load(const SafetensorsReader& reader);
  // Adapters, and the biases that are trained with them, as PEFT stores them.
  void load_adapters(const SafetensorsReader& reader);
  // Adds what adapters add to the matrices, so that the model without adapters computes the same.
  void merge_adapters();

 private:
  void put_masters_on_host();
  void initialize_vectors(std::uint64_t seed, bool adapters_alone);

  Model model_;
  int domain_;
  int domain_rank_;
  ParameterTypes types_;
  c10::Device device_;
  std::vector<PartParameters> parts_;
};

// A piece of a weight that a rank trains: rows of the tensor that Hugging Face stores, or columns
// of it where that is `transposed`; a vector whole.
struct WeightPiece {
  std::string name;
  std::vector<std::int64_t> shape;  // of the whole tensor
  bool transposed = false;
  Interval rows;                    // of the whole
  at::Tensor master;                // the stack (or vector) that the piece lies in
  Interval here;                    // its elements of that
  std::vector<std::int64_t> sizes;  // of the piece: [rows, columns], or [rows]

  // The piece of a tensor that lies like the stack.
  [[nodiscard]] at::Tensor of(const at::Tensor& stack) const {
    return stack.narrow(0, here.begin, here.size()).view(sizes);
  }
};
// All that this rank trains, in the order of the parts; tied ones once, empty ones not at all.
std::vector<WeightPiece> pieces(const Parameters& parameters);

// All weights; all but adapters; those that are trained; or the gradients that those have.
enum class Which { weights, base, trained, gradients };

// Brings every tensor together under its Hugging Face name and shape, one after the other, a tied
// one once: `take` is called on domain rank 0 with each, on the host.  Every rank of `domain` calls
// this.  `masters`: of narrow weights that are trained the float32 masters, where there are any.
void collect(
    const Parameters& parameters,
    Which which,
    Communicator& domain,
    const std::function<void(const std::string& name, const at::Tensor& tensor)>& take,
    bool masters = false);

// Names and shapes, in the order in which collect() brings them.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> parameter_shapes(
    const Model& model, Which which = Which::weights);

// Where files have the weights of a model.
struct StoredWeights {
  std::map<std::string, std::string> names;  // as the model calls them, and the files do
  std::vector<std::string> unused;           // heads for other tasks, which no loss depends on
  std::vector<std::string> notes = {};       // sentences: what is taken otherwise than it is named
};
// Under the names of today, older ones, those of the model without a head, or of a tied copy.
// Throws std::runtime_error naming file and tensor for a missing one, a wrong shape or type, or one
// that no part uses (known buffers, heads for other tasks, and what an index leaves out apart).
StoredWeights stored_weights(const SafetensorsReader& reader, const Model& model);

// read_model(); but where a tied model's files hold another head, the model is untied, as
// transformers 5 takes it, unless weights are to be random.
ModelFolder open_model(const std::filesystem::path& path, bool random_weights = false);
// The same, but refuses a model of several dims.
ModelFolder open_language_model(const std::filesystem::path& path, bool random_weights = false);

// Where the weights that a model begins with come from.
struct ModelWeights {
  std::shared_ptr<const SafetensorsReader> reader = {};  // none: they are random
  // Of adapters, where the model has some; none: they begin anew.
  std::shared_ptr<const SafetensorsReader> adapters = {};
  std::uint64_t seed = 1;               // of random ones
  std::string said = {};                // "weights are random (seed 1)", or files
  std::vector<std::string> notes = {};  // sentences, of the folder too: for the user

  [[nodiscard]] bool random() const { return reader == nullptr; }
  // Puts a rank's weights in place; safe on several ranks at once.
  void fill(Parameters& parameters) const;
};
// Opens the weight files of a folder and holds them against the model.  Weights are random where
// the model is a TOML file or a preset, or where `random_weights` asks for it.  Throws
// std::invalid_argument, naming the file, what is wrong and what to do, for all that cannot be read
// or does not fit.
ModelWeights open_weights(const ModelFolder& model, bool random_weights, std::uint64_t seed);

// A model could not be written: the file and the system's reason.
class NotSaved : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Of a model with adapters see save_adapters(); its merged weights, where `from` is without them.
// Writes config.json and model.safetensors into the new folder `to`, and copies what lies beside
// the weights where `from`, the model of these parameters, is a folder; the tensors have `dtype`.
// Of narrow weights another type is rounded from their masters, where there are any.
// Every rank of `domain` calls this, rank 0 writes; it returns sentences for the user.  Rank 0
// throws NotSaved, also when `to` holds a model already, since nothing is overwritten; not before
// the others are through, so that all can go on.
std::vector<std::string> save_model(
    const Parameters& parameters,
    Communicator& domain,
    const std::filesystem::path& to,
    const ModelFolder& from,
    at::ScalarType dtype);

}  // namespace paradyse
