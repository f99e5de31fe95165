// Gives each request of the host to the unit that it is for.
//
// Minerva, section III-A: requests come into a FIFO; plain I/O goes to one unit, computational
// reads and writes go to others. Each unit has a queue here, so requests wait for their own unit
// alone until that queue is full: that of plain I/O has a place for a request of each of the host's
// page buffers, and software sends no more parts of commands than a slot takes. Requests for a unit
// stay in order. One for a unit that there is not is dropped, and `is_unknown` says so: there is
// nobody to answer it.

`default_nettype none

module request_scheduler #(
  parameter int UNITS = 4,
  parameter int WIDTH = shell_pkg::WORK_BITS,
  parameter int DEPTH = 16,          // requests in each queue but unit 0's; a power of two
  parameter int IO_DEPTH = 256,      // in unit 0's, plain I/O; a power of two
  parameter int UNIT_BITS = $clog2(UNITS)
) (
  input  wire  logic                   clk,
  input  wire  logic                   reset,

  input  wire  logic                   s_valid,
  output logic                         s_ready,
  input  wire  logic [UNIT_BITS-1:0]   s_unit,
  input  wire  logic [WIDTH-1:0]       s_request,

  output logic [UNITS-1:0]             m_valid,
  input  wire  logic [UNITS-1:0]       m_ready,
  output logic [UNITS*WIDTH-1:0]       m_request,

  output logic                         is_unknown
);

  if (UNITS < 2) begin : check_units
    $error("request_scheduler: UNITS is less than 2");
  end

  logic                 valid;
  logic                 ready;
  logic [UNIT_BITS-1:0] unit;
  logic [WIDTH-1:0]     request;
  logic [UNITS-1:0]     unit_ready;
  logic                 is_known;

  packet_fifo #(
    .WIDTH(UNIT_BITS + WIDTH),
    .DEPTH(DEPTH)
  ) arrivals (
    .clk,
    .reset,
    .s_valid,
    .s_ready,
    .s_data({s_unit, s_request}),
    .m_valid(valid),
    .m_ready(ready),
    .m_data({unit, request}),
    .level()
  );

  always_comb begin
    is_known = 1'b0;
    ready = 1'b0;
    for (int u = 0; u < UNITS; u++) begin
      if (unit == UNIT_BITS'(u)) begin
        is_known = 1'b1;
        ready = unit_ready[u];
      end
    end
    if (!is_known) ready = 1'b1;
  end
  assign is_unknown = valid && !is_known;

  for (genvar u = 0; u < UNITS; u++) begin : units
    packet_fifo #(
      .WIDTH(WIDTH),
      .DEPTH(u == 0 ? IO_DEPTH : DEPTH)
    ) queue (
      .clk,
      .reset,
      .s_valid(valid && unit == UNIT_BITS'(u)),
      .s_ready(unit_ready[u]),
      .s_data(request),
      .m_valid(m_valid[u]),
      .m_ready(m_ready[u]),
      .m_data(m_request[WIDTH*u +: WIDTH]),
      .level()
    );
  end

endmodule

`default_nettype wire
