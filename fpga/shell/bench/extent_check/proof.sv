// A command comes out only if the table had an extent for it, of its endpoint, while it was
// checked; it comes out as it went in; one is refused only if no line that stayed as it was has an
// extent for it; each command ends in just one of the two, within a bounded number of clocks;
// acknowledgements of the card pass.
//
// The fields are narrow here (bench.toml).

`default_nettype none

module proof #(
  parameter int EXTENTS = 4,
  parameter int LINE_BITS = $clog2(EXTENTS)
) (
  input wire logic                              clk,
  input wire logic                              load,
  input wire logic [LINE_BITS-1:0]              load_line,
  input wire shell_pkg::extent_t                load_extent,
  input wire logic                              s_valid,
  input wire shell_pkg::command_t               s_command,
  input wire logic [shell_pkg::TAG_BITS-1:0]    s_tag,
  input wire logic                              ack_ready,
  input wire logic                              m_ready,
  input wire logic                              card_ack_valid,
  input wire logic [shell_pkg::TAG_BITS-1:0]    card_ack_tag,
  input wire logic [shell_pkg::STATUS_BITS-1:0] card_ack_status
);

  localparam int TAG_BITS = shell_pkg::TAG_BITS;
  localparam int PAGE_BITS = shell_pkg::PAGE_BITS;
  localparam int EXTENT_BITS = shell_pkg::EXTENT_BITS;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic                              s_ready;
  logic                              ack_valid;
  logic [TAG_BITS-1:0]               ack_tag;
  logic [shell_pkg::STATUS_BITS-1:0] ack_status;
  logic                              m_valid;
  shell_pkg::command_t               m_command;
  logic [TAG_BITS-1:0]               m_tag;
  logic                              card_ack_ready;

  extent_check #(
    .EXTENTS(EXTENTS)
  ) check (
    .clk, .reset, .load, .load_line, .load_extent, .s_valid, .s_ready, .s_command, .s_tag,
    .ack_valid, .ack_ready, .ack_tag, .ack_status, .m_valid, .m_ready, .m_command, .m_tag,
    .card_ack_valid, .card_ack_ready, .card_ack_tag, .card_ack_status
  );

  wire is_checking;                               // probe check.is_checking
  wire is_refused;                                // probe check.is_refused
  wire [LINE_BITS-1:0] line;                      // probe check.line
  wire [EXTENTS*EXTENT_BITS-1:0] extents;         // probe check.extents[*]

  // Our own table.
  logic [EXTENTS*EXTENT_BITS-1:0] ours = '0;

  // The one command inside, and whether the table has an extent for it, written another way than
  // in the design: page by page.
  logic                    has_one;
  shell_pkg::command_t     command;
  logic [TAG_BITS-1:0]     tag;
  logic [EXTENTS-1:0]      covers;
  logic                    was_covered;   // in a clock of its check
  logic [EXTENTS-1:0]      was_loaded;    // a line that was changed since the command came in
  logic [7:0]              age;           // clocks of its check

  shell_pkg::extent_t extent;
  always_comb begin
    for (int i = 0; i < EXTENTS; i++) begin
      extent = ours[EXTENT_BITS*i +: EXTENT_BITS];
      covers[i] = extent.is_valid && extent.endpoint == command.endpoint;
      if (command.operation != shell_pkg::READ && !extent.may_write) covers[i] = 1'b0;
      for (int page = 0; page < 1 << PAGE_BITS; page++) begin
        if (page == command.page || (command.operation == shell_pkg::ERASE &&
            page >> shell_pkg::ERASE_BITS == command.page >> shell_pkg::ERASE_BITS)) begin
          if (page < extent.first || page > extent.last) covers[i] = 1'b0;
        end
      end
    end
  end

  wire take = s_valid && s_ready;
  wire pass = m_valid && m_ready;
  wire refuse = is_refused && ack_valid && ack_ready;

  always_ff @(posedge clk) begin
    if (load) begin
      ours[EXTENT_BITS*load_line +: EXTENT_BITS] <= load_extent;
      was_loaded[load_line] <= 1'b1;
    end
    if (covers != '0 && is_checking) was_covered <= 1'b1;
    age <= take ? '0 : age + 1'b1;
    if (pass || refuse) has_one <= 1'b0;
    if (take) begin
      has_one <= 1'b1;
      command <= s_command;
      tag <= s_tag;
      was_covered <= 1'b0;
      was_loaded <= '0;
      if (load) was_loaded <= EXTENTS'(1) << load_line;
    end
    if (reset) begin
      has_one <= 1'b0;
      age <= '0;
    end
  end

  // Lines that have been looked at.
  logic [EXTENTS-1:0] seen;
  always_comb begin
    for (int i = 0; i < EXTENTS; i++) seen[i] = is_refused || (is_checking && i < line);
  end

  always_comb begin
    a_table: assert (extents == ours);
    if (started) begin
      if (m_valid) begin
        a_covered: assert (was_covered);
        a_same: assert (m_command == command && m_tag == tag);
      end
      a_not_covered: assert ((covers & seen & ~was_loaded) == '0);
      a_one_end: assert (2'(is_checking) + 2'(is_refused) + 2'(m_valid) == 2'(has_one));
      if (has_one) a_kept: assert (m_command == command && m_tag == tag);

      if (is_checking) a_age: assert (age < EXTENTS && age == line);
      a_progress: assert (s_ready == (!has_one || pass));

      a_ack: assert (ack_valid == (is_refused || card_ack_valid));
      if (is_refused)
        a_refused: assert (ack_tag == tag && ack_status == shell_pkg::REFUSED && !card_ack_ready);
      else a_passed: assert (ack_tag == card_ack_tag && ack_status == card_ack_status &&
                             card_ack_ready == ack_ready);
    end
  end

endmodule

`default_nettype wire
