// The n-th answer is for the n-th question: the page of the segment where the file has it, or out
// of bounds, just when the file has no such page.
//
// Tables do not change while questions are inside.

`default_nettype none

module proof #(
  parameter int LINE_BITS = 2
) (
  input wire logic                              clk,
  input wire logic                              load_segment,
  input wire logic [LINE_BITS-1:0]              load_line,
  input wire logic [shell_pkg::NUMBER_BITS-1:0] load_number,
  input wire logic                              load_file,
  input wire logic [shell_pkg::HANDLE_BITS-1:0] load_handle,
  input wire logic [LINE_BITS-1:0]              load_first,
  input wire logic [shell_pkg::OFFSET_BITS-1:0] load_pages,
  input wire logic                              s_valid,
  input wire logic [shell_pkg::HANDLE_BITS-1:0] s_handle,
  input wire logic [shell_pkg::OFFSET_BITS-1:0] s_offset,
  input wire logic                              m_ready
);

  localparam int HANDLE_BITS = shell_pkg::HANDLE_BITS;
  localparam int OFFSET_BITS = shell_pkg::OFFSET_BITS;
  localparam int SEGMENT_BITS = shell_pkg::SEGMENT_BITS;
  localparam int PAGE_BITS = shell_pkg::PAGE_BITS;
  localparam int NUMBER_BITS = shell_pkg::NUMBER_BITS;
  localparam int HANDLES = 1 << HANDLE_BITS;
  localparam int LINES = 1 << LINE_BITS;
  localparam int QUESTION_BITS = HANDLE_BITS + OFFSET_BITS;
  localparam int FILE_BITS = LINE_BITS + OFFSET_BITS;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic                 s_ready;
  logic                 m_valid;
  logic [PAGE_BITS-1:0] m_page;
  logic                 m_is_out_of_bounds;

  address_translation #(
    .LINE_BITS(LINE_BITS)
  ) unit (
    .clk, .reset, .load_segment, .load_line, .load_number, .load_file, .load_handle, .load_first,
    .load_pages, .s_valid, .s_ready, .s_handle, .s_offset, .m_valid, .m_ready, .m_page,
    .m_is_out_of_bounds
  );

  wire [HANDLES*FILE_BITS-1:0] files;        // probe unit.files[*]
  wire [LINES*NUMBER_BITS-1:0] segments;     // probe unit.segments[*]
  wire valid;                                // probe unit.valid
  wire between_is_out;                       // probe unit.is_out_of_bounds
  wire [LINE_BITS-1:0] line;                 // probe unit.line
  wire [SEGMENT_BITS-1:0] rest;              // probe unit.rest

  // Our own tables, and the questions inside, the oldest lowest.
  logic [HANDLES*LINE_BITS-1:0]   firsts;
  logic [HANDLES*OFFSET_BITS-1:0] pages = '0;
  logic [LINES*NUMBER_BITS-1:0]   numbers;
  logic [2*QUESTION_BITS-1:0]     questions;
  logic [1:0]                     count;

  // The answer to a question: {out of bounds, page}.
  function automatic [PAGE_BITS:0] answer(input [QUESTION_BITS-1:0] question,
                                          input [HANDLES*LINE_BITS-1:0] all_firsts,
                                          input [HANDLES*OFFSET_BITS-1:0] all_pages,
                                          input [LINES*NUMBER_BITS-1:0] all_numbers);
    integer handle, offset, at;
    handle = question[QUESTION_BITS-1:OFFSET_BITS];
    offset = question[OFFSET_BITS-1:0];
    at = all_firsts[LINE_BITS*handle +: LINE_BITS] + (offset >> SEGMENT_BITS);
    if (offset >= all_pages[OFFSET_BITS*handle +: OFFSET_BITS] || at >= LINES)
      answer = {1'b1, {PAGE_BITS{1'b0}}};
    else answer = (all_numbers[NUMBER_BITS*at +: NUMBER_BITS] << SEGMENT_BITS) +
                  (offset & ((1 << SEGMENT_BITS) - 1));
  endfunction

  wire in = s_valid && s_ready;
  wire out = m_valid && m_ready;

  always_ff @(posedge clk) begin
    if (load_file) begin
      firsts[LINE_BITS*load_handle +: LINE_BITS] <= load_first;
      pages[OFFSET_BITS*load_handle +: OFFSET_BITS] <= load_pages;
    end
    if (load_segment) numbers[NUMBER_BITS*load_line +: NUMBER_BITS] <= load_number;
    if (out) questions <= questions >> QUESTION_BITS;
    if (in) questions[QUESTION_BITS * (count - 2'(out)) +: QUESTION_BITS] <= {s_handle, s_offset};
    count <= count + 2'(in) - 2'(out);
    if (reset) count <= '0;
  end

  wire [PAGE_BITS:0] oldest = answer(questions[QUESTION_BITS-1:0], firsts, pages, numbers);
  wire [PAGE_BITS:0] newest =
    answer(questions[QUESTION_BITS * (count - 1'b1) +: QUESTION_BITS], firsts, pages, numbers);

  always_comb begin
    if (count != '0 || s_valid || reset) assume (!load_segment && !load_file);
    for (int h = 0; h < HANDLES; h++) begin
      assert (files[FILE_BITS*h +: OFFSET_BITS] == pages[OFFSET_BITS*h +: OFFSET_BITS]);
      // What was never loaded is of no matter: such a file has no pages.
      if (pages[OFFSET_BITS*h +: OFFSET_BITS] != '0)
        assert (files[FILE_BITS*h + OFFSET_BITS +: LINE_BITS] == firsts[LINE_BITS*h +: LINE_BITS]);
    end
    if (started) begin
      a_count: assert (count == 2'(m_valid) + 2'(valid));
      if (m_valid) begin
        a_bounds: assert (m_is_out_of_bounds == oldest[PAGE_BITS]);
        if (!m_is_out_of_bounds) a_page: assert (m_page == oldest[PAGE_BITS-1:0]);
      end
      if (valid) begin
        a_between: assert (between_is_out == newest[PAGE_BITS]);
        if (!between_is_out)
          a_line: assert ({segments[NUMBER_BITS*line +: NUMBER_BITS], rest} ==
                          newest[PAGE_BITS-1:0]);
      end
      a_progress: assert (s_ready == (count != 2 || m_ready));
    end
  end

  // Segments are the same from the first load on.
  logic [LINES-1:0] is_loaded = '0;
  always_ff @(posedge clk) if (load_segment) is_loaded[load_line] <= 1'b1;
  always_comb begin
    for (int i = 0; i < LINES; i++) begin
      if (is_loaded[i]) assert (segments[NUMBER_BITS*i +: NUMBER_BITS] ==
                                numbers[NUMBER_BITS*i +: NUMBER_BITS]);
      else assume (segments[NUMBER_BITS*i +: NUMBER_BITS] == numbers[NUMBER_BITS*i +: NUMBER_BITS]);
    end
  end

endmodule

`default_nettype wire
