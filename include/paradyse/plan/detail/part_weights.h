// The one weight layout: how the matrices of a part are cut over the weight domain.
//
// A part's matrices are one run of elements, the *stack*: matrix after matrix, each row-major
// (output matrices are kept transposed) and cut along its own rows: heads, feed-forward width,
// vocabulary. A rank stores its rows of all of them one after the other.  Its piece is a
// tensor-parallel shard as it stands and a ZeRO-3 shard to gather, so a change of strategy moves
// nothing.  Vectors (norms, biases) are replicated: a rank uses the entries of its own rows, and
// gradients are summed over the ranks once a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/detail/layout.h"

namespace paradyse {

// The numbers that a matrix begins with.  truncated: normal, but none beyond two deviations of that
// normal; uniform: as far to both sides of zero.
enum class Begin { normal, truncated, uniform, zero };

struct Matrix {
  std::string name;       // that builders say: "q", "k", "v", "o", "gate", "up", "down", ...
  std::string stored_as;  // Hugging Face's name, below the layer's prefix
  std::int64_t rows = 0;  // of the whole
  std::int64_t cols = 0;
  Cuts cuts;                // rows of each rank of the domain, one interval at most
  bool transposed = false;  // Hugging Face stores [H, rows]
  bool tied = false;        // the memory of another part: no parameter of its own
  // Some models store several matrices as one tensor: this one's rows begin at `first` of
  // `stored_rows` (0: all are its own).  Such matrices stand one after the other in a stack.
  std::int64_t first = 0;
  std::int64_t stored_rows = 0;
  // Where these are not one run: the tensor's rows that this one's are, in their order.
  std::vector<Interval> stored_at = {};
  std::vector<std::int64_t> stored_shape = {};  // of the whole tensor where it has other dims
  Begin begin = Begin::normal;
  double deviation = 0;  // standard, of the first numbers; 0: the model's initializer_range * scale
  double scale = 1.0;    // of that range
  // Of a low-rank adapter (lora.h): what it adds is a product of two of the part's vectors.
  struct Adapter {
    int a = -1;  // A [r, columns of the input], a place in PartWeights::vectors; -1: none
    int b = -1;  // B [rows of the output, r]
    std::int64_t first = 0;  // this one's rows begin there in B (or, `output`, in A's columns)
    bool output = false;     // y = x w: its rows are the inputs
    double scale = 0;        // of the product
  };
  Adapter adapter = {};

  [[nodiscard]] std::int64_t elements() const { return rows * cols; }
  // Runs of rows of the tensor that some of this one's rows are, in their order.
  [[nodiscard]] std::vector<Interval> stored(Interval some) const;
};

// Rows of one matrix of a stack, or of several that stand one after the other and are as wide: what
// one product reads, as elements of the whole stack.
struct WeightRows {
  Piece elements = {};
  std::int64_t cols = 0;

  [[nodiscard]] std::int64_t rows() const { return cols == 0 ? 0 : size(elements) / cols; }
};

enum class Role {
  norm,        // weight, and a LayerNorm's bias
  in_bias,     // q | k | v, or gate | up, side by side: of products before the last sum
  out_bias,    // of the output product, or of the head
  qk_norm,     // of query heads, of key heads; or of all queries, all keys of a token
  added_norm,  // of what a part adds to its stream
  pair_norm,   // of the stream that a bias of attention, or an outer product's other side, is from
  last_norm,   // before the output product, of what a triangle multiplication makes
  modulate,    // added to the shift | scale of what conditions a part
  gate,        // added to its gate; or of the product that makes a gate
  adapter_a,   // of a low-rank adapter (Matrix::Adapter): A, row after row
  adapter_b,   // and B
};

struct Vector {
  Role role = Role::norm;
  std::string name;
  std::int64_t size = 0;
  double initial = 0.0;
  double deviation = 0;         // standard, of numbers around that; 0: all are alike
  Begin begin = Begin::normal;  // which those are
  // Some models store several vectors, perhaps of several parts of a layer, as one tensor [rows,
  // columns]: this one is its rows from `first` on, of `stored_rows` (0: the tensor is the vector).
  std::int64_t first = 0;
  std::int64_t stored_rows = 0;
  std::int64_t columns = 0;
  // A whole tensor in another order: the tensor's entries that this one's are, in their order.
  std::vector<Interval> stored_at = {};
  bool frozen = false;  // not trained: it has no gradient and no state of an optimizer

  [[nodiscard]] bool of_adapter() const {
    return role == Role::adapter_a || role == Role::adapter_b;
  }
};

struct PartWeights {
  std::string part;    // "embedding", "attention", "mlp", "transform" or "head"
  std::string prefix;  // of a layer's names, "model.layers."; empty for what is no layer's
  std::int64_t first_layer = 0;  // its names count from this one
  std::vector<Matrix> matrices;
  std::vector<Vector> vectors;
  bool frozen = false;  // its matrices are not trained, as Vector::frozen

  // The stack as the ranks of the domain store it: one dim, "elements".
  [[nodiscard]] Layout stack() const;
  // Throws std::invalid_argument, naming the matrices there are, for another name, as the next.
  [[nodiscard]] const Matrix& matrix(const std::string& name) const;
  // All rows of a matrix, or some; and of each of the matrices from `first` to `last`.
  [[nodiscard]] WeightRows rows(const std::string& name) const;
  [[nodiscard]] WeightRows rows(const std::string& name, Interval some) const;
  [[nodiscard]] WeightRows between(const std::string& first, const std::string& last) const;
  [[nodiscard]] WeightRows between(
      const std::string& first, const std::string& last, Interval some) const;
  // Those of them that `rank` of the domain stores.
  [[nodiscard]] WeightRows own(const std::string& first, const std::string& last, int rank) const;
  // Where matrix `m` lies among the elements that `rank` stores.
  [[nodiscard]] Interval elements_of(std::size_t m, int rank) const;
  // The vectors of a role, which stand together; empty where the part has none.
  [[nodiscard]] Interval vectors_of(Role role) const;
  // Elements that `rank` stores: its stack and the vectors.
  [[nodiscard]] std::int64_t elements(int rank) const;
  // Of these, what is trained.
  [[nodiscard]] std::int64_t trained_elements(int rank) const;

 private:
  template <typename RowsOf>
  [[nodiscard]] WeightRows each(
      const std::string& first, const std::string& last, RowsOf rows_of) const;
  [[nodiscard]] std::size_t place(const std::string& name) const;
  [[nodiscard]] std::int64_t first_element(std::size_t m) const;  // of the whole stack
};

// Query heads, and the key/value heads they attend to, of one rank.
struct Heads {
  Interval query;
  Interval key;

  friend bool operator==(const Heads&, const Heads&) = default;
};

// "model.layers.3.", or "" for what is no layer's.
std::string layer_prefix(const PartWeights& part, std::int64_t layer);

}  // namespace paradyse
