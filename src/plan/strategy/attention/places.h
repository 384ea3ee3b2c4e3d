// Attention whose cores are one program: they differ in where its values lie.
#pragma once

#include <string>
#include <vector>

#include "paradyse/plan/writer.h"

namespace paradyse {

// Rows of the normed input, for the product with the weights of q, k and v, as heads lie for that
// with their own weights; and rows of what attends.  Where they lie alike no move is written.
struct AttentionPlaces {
  Layout own;
  Layout at;
  std::vector<Heads> heads;  // [group rank] in `at`
  std::int64_t tiles = 1;    // of a rank's lines; several where `own` and `at` lie alike alone
};

// Weights gathered; the result goes back to where the part's stream lies.
Program attention_at(Writer& w, const PartShape& shape, const AttentionPlaces& places);

// Throws std::invalid_argument where ranks have parts of the lines that 'Local' attends along;
// `instead`: what to take then.
void expect_whole_lines(const Task& task, const Layout& rows, const char* instead);
// Row dims but the one that is attended along, in their order.
std::vector<const Dim*> other_rows(const Layout& rows, const std::string& along);

// token_tiles, of strategies that give a rank whole lines with all their heads.
Option line_tiles_option();

// The same strategy for attention along a dim of a grid: rows that are no packed tokens.
Strategy along_a_dim(Strategy strategy);

}  // namespace paradyse
