//! Where a pick reads and writes in the shared table.

use super::Carried;
use super::table::Table;
use crate::endpoint::EndpointId;
use crate::policy::Load;

/// Where everything lies that a pick needs.
pub(super) struct Place {
    /// The columns of the pool's endpoints, in their order.
    pub(super) columns: Vec<usize>,
    /// How many picks the pool had before.
    pub(super) sequence: u64,
    /// This VM's row.
    slot: usize,
    counter: usize,
}

impl Place {
    /// `hints` are the columns where the endpoints were last. `None` if something is missing.
    pub(super) fn locate(
        bytes: &mut [u8],
        vm: u64,
        pool: u64,
        ids: &[EndpointId],
        hints: &[usize],
    ) -> Option<Self> {
        let table = Table::new(bytes)?;
        let (counter, sequence) = table.counter(pool)?;
        let column = |(index, id): (usize, &EndpointId)| {
            table.column(*id, hints.get(index).copied().unwrap_or(index))
        };
        Some(Self {
            columns: ids.iter().enumerate().map(column).collect::<Option<_>>()?,
            slot: table.slot(vm)?,
            counter,
            sequence,
        })
    }

    /// What all VMs carry on the pool's endpoints, in their order.
    pub(super) fn carried(&self, table: &Table<'_>) -> Vec<Carried> {
        let sums = table.sums();
        let carried = |column: &usize| Carried {
            load: sums.get(*column).copied().unwrap_or_default(),
            moved_ms: table.moved_ms(*column),
        };
        self.columns.iter().map(carried).collect()
    }

    /// Writes a pick of the endpoint at `index`, on which all VMs carried `before` and this one holds `held`
    /// from now on. `None`, with nothing written, if there is no such endpoint.
    pub(super) fn write(
        &self,
        table: &mut Table<'_>,
        now_ms: u64,
        index: usize,
        before: &Carried,
        held: Load,
    ) -> Option<()> {
        let column = *self.columns.get(index)?;
        table.set_cell(self.slot, column, held);
        if before.load.waiting == 0 {
            table.set_moved_ms(column, now_ms);
        }
        table.set_counter(self.counter, self.sequence.wrapping_add(1));
        table.set_heartbeat(self.slot, now_ms);
        Some(())
    }
}
