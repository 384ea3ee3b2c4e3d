// Attention whose cores are one program: they differ in where its values lie.
#pragma once

#include <vector>

#include "paradyse/plan/writer.h"

namespace paradyse {

// Rows of the normed input, for the product with the weights of q, k and v; of what attends; and of
// heads, for the product with their own weights.  Where two neighbours lie alike no move is
// written.
struct AttentionPlaces {
  Layout in;
  Layout at;
  Layout out;                // as `in`
  std::vector<Heads> heads;  // [group rank]
};

// Weights gathered; the result goes back to where the part's stream lies.
Program attention_at(Writer& w, const PartShape& shape, const AttentionPlaces& places);

// The same strategy for attention along a dim of a grid: rows that are no packed tokens.
Strategy along_a_dim(Strategy strategy);

}  // namespace paradyse
