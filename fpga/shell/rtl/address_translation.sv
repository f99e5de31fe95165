// The address translation unit: page of a file ▸ page of the card.
//
// BlueDBM, section 3.1.2: it "maps file handles to incoming streams of physical addresses from the
// host". A file lies in segments of 2^SEGMENT_BITS pages; a handle names the first of its lines in
// the table of segments, and how many pages the file has. What lies behind a file's end, or has a
// handle that was not loaded, is out of bounds: no page is given for it. Handles are loaded after
// their segments, and are not changed while they are in use. Lines outlive a reset.

`default_nettype none

module address_translation #(
  parameter int LINE_BITS = 10       // lines in the table of segments: 2 GiB at a time
) (
  input  wire  logic                               clk,
  input  wire  logic                               reset,

  input  wire  logic                               load_segment,
  input  wire  logic [LINE_BITS-1:0]               load_line,
  input  wire  logic [shell_pkg::NUMBER_BITS-1:0]  load_number,   // of the segment on the card

  input  wire  logic                               load_file,
  input  wire  logic [shell_pkg::HANDLE_BITS-1:0]  load_handle,
  input  wire  logic [LINE_BITS-1:0]               load_first,    // of its lines
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]  load_pages,    // that the file has

  input  wire  logic                               s_valid,
  output logic                                     s_ready,
  input  wire  logic [shell_pkg::HANDLE_BITS-1:0]  s_handle,
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]  s_offset,

  output logic                                     m_valid,
  input  wire  logic                               m_ready,
  output logic [shell_pkg::PAGE_BITS-1:0]          m_page,
  output logic                                     m_is_out_of_bounds
);

  localparam int HANDLE_BITS = shell_pkg::HANDLE_BITS;
  localparam int OFFSET_BITS = shell_pkg::OFFSET_BITS;
  localparam int SEGMENT_BITS = shell_pkg::SEGMENT_BITS;
  localparam int NUMBER_BITS = shell_pkg::NUMBER_BITS;
  localparam int INDEX_BITS = OFFSET_BITS - SEGMENT_BITS;   // of a segment in its file
  localparam int SUM_BITS = (INDEX_BITS > LINE_BITS ? INDEX_BITS : LINE_BITS) + 1;

  // An FPGA gives memories their first contents with its configuration: files of no page.
  logic [LINE_BITS+OFFSET_BITS-1:0] files [1 << HANDLE_BITS];
  logic [NUMBER_BITS-1:0]           segments [1 << LINE_BITS];

  initial begin
    for (int i = 0; i < 1 << HANDLE_BITS; i++) files[i] = '0;
  end

  logic [LINE_BITS-1:0]    first;
  logic [OFFSET_BITS-1:0]  pages;
  logic [SUM_BITS-1:0]     sum;

  // Between the two tables.
  logic                    valid;
  logic                    is_out_of_bounds;
  logic [LINE_BITS-1:0]    line;
  logic [SEGMENT_BITS-1:0] rest;
  logic                    go;

  assign {first, pages} = files[s_handle];
  assign sum = SUM_BITS'(first) + SUM_BITS'(s_offset[OFFSET_BITS-1:SEGMENT_BITS]);
  assign go = !m_valid || m_ready;
  assign s_ready = !valid || go;

  always_ff @(posedge clk) begin
    if (load_file) files[load_handle] <= {load_first, load_pages};
    if (load_segment) segments[load_line] <= load_number;
    if (s_ready) begin
      valid <= s_valid;
      // A file whose lines are more than there are is as long as they are.
      is_out_of_bounds <= s_offset >= pages || sum >> LINE_BITS != '0;
      line <= sum[LINE_BITS-1:0];
      rest <= s_offset[SEGMENT_BITS-1:0];
    end
    if (go) begin
      m_valid <= valid;
      m_page <= {segments[line], rest};
      m_is_out_of_bounds <= is_out_of_bounds;
    end
    if (reset) begin
      valid <= 1'b0;
      m_valid <= 1'b0;
    end
  end

endmodule

`default_nettype wire
